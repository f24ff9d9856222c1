"""What a reader does with the page of `abar report`, in headless Chromium. Arguments: the folder with the pages that test_report.sh wrote.
Prints a line for each case that does not hold, and the counts last."""
import glob
import json
import os
import re
import statistics
import sys

from browser import Browser

work = sys.argv[1]
passed, failed = 0, 0


def check(name, holds, what=""):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print(f"WRONG: {name} {what}")


def address(page):
    return "file://" + os.path.join(work, page)


def epochs(folder):
    with open(os.path.join(folder, "log.jsonl")) as log:
        lines = [json.loads(line) for line in log]
    return [line for line in lines if "epoch" in line]


CURVES = "document.querySelectorAll('.chart:first-child path.curve').length"
SHAPES = "[...document.querySelectorAll('path.curve')].map(p => p.getAttribute('d')).join()"
TIP = "(t => t.hidden ? '' : t.textContent)(document.querySelector('.chart:first-child .tip'))"


def set_value(b, name, value):
    b.js(f"(e => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event(e.type === 'range' ? 'input' : 'change')); }})(document.getElementById('{name}'))")


def quiet(b, name):
    outside = [r for r in b.requests if not r.startswith(("file:", "data:"))]
    check(f"{name}: no error and no warning", b.problems == [], b.problems)
    check(f"{name}: nothing is loaded", outside == [], outside)


def check_values(b):
    """The values beside the pointer are those of the logs: means over the seeds at the last epoch."""
    b.mouse(".plot", 0.99, 0.5)
    tip = b.js(TIP)
    for label in ("sgd", "mac"):
        ends = [epochs(f)[-1]["test_acc"] for f in glob.glob(os.path.join(work, "cmp", label + "-s*"))]
        text = f"{label} (2 seeds){float(f'{statistics.mean(ends):.4g}'):g}"
        check(f"{label} beside the pointer", text in tip, f"{text!r} in {tip!r}")
    check("the epoch beside the pointer", tip.startswith("epoch 3"), tip)


def check_controls(b):
    check("two curves, of two seeds each", b.js(CURVES) == 2, b.js(CURVES))
    check("two bands", b.js("document.querySelectorAll('.chart:first-child path.area').length") == 2)
    b.mouse("#band", click=True)
    check("four curves without bands", b.js(CURVES) == 4, b.js(CURVES))
    b.mouse("#band", click=True)
    for box in ("logx", "logy"):
        before = b.js(SHAPES)
        b.mouse("#" + box, click=True)
        check(f"{box} draws anew", b.js(SHAPES) not in ("", before) and "NaN" not in b.js(SHAPES))
        b.mouse("#" + box, click=True)
        check(f"{box} and back", b.js(SHAPES) == before)
    before = b.js(SHAPES)
    set_value(b, "smooth", "0.8")
    check("smoothing draws anew", b.js(SHAPES) != before)
    set_value(b, "smooth", "0")
    for axis in ("step", "time", "samples"):
        set_value(b, "axis", axis)
        check(f"curves over {axis}", b.js(CURVES) == 2 and "NaN" not in b.js(SHAPES))
    b.mouse(".plot", 0.99, 0.5)
    check("samples: 3 epochs of 8 batches of 32", b.js(TIP).startswith("sample 768"), b.js(TIP))
    check("steps of an epoch, from every log", b.js("data.runs.every(run => run.epochs.step.join() === '8,16,24' && stepsPerEpoch(run) === 8)"))
    set_value(b, "axis", "epoch")


def check_hiding(b):
    b.mouse("#legend input", click=True)
    check("one is hidden", b.js(CURVES) == 1, b.js(CURVES))
    b.mouse("#none", click=True)
    check("all are hidden", b.js(CURVES) == 0 and "hidden" in b.js("document.querySelector('.plot').textContent"))
    b.mouse("#all", click=True)
    check("all are shown", b.js(CURVES) == 2)
    b.js("document.querySelector('#legend input').focus()")
    b.press(" ")
    check("a key hides one, and the focus stays", b.js(CURVES) == 1 and b.js("document.activeElement.closest('#legend') !== null"))
    b.mouse("#all", click=True)


def check_keys(b):
    b.js("document.querySelector('.plot').focus()")
    b.press("Home")
    first = b.js("document.getElementById('said').textContent")
    b.press("ArrowRight")
    second = b.js("document.getElementById('said').textContent")
    b.press("End")
    check("values are read by keys", first.startswith("epoch 1;") and second.startswith("epoch 2;"), first + second)
    check("to the end", b.js("document.getElementById('said').textContent").startswith("epoch 3;"))
    unnamed = b.js("[...document.querySelectorAll('select, input, button, .plot')].filter(e => !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))).length")
    check("every control has a name", unnamed == 0, unnamed)


def check_themes(b):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = b.js(ground)
    b.media("dark")
    dark = b.js(ground)
    check("the system's dark is followed", dark != light)
    b.mouse("#theme", click=True)
    check("the button makes it light", b.js(ground) == light, b.js(ground))
    b.mouse("#theme", click=True)
    check("and dark", b.js(ground) == dark)
    b.media("dark", "print")
    check("print is light", b.js("getComputedStyle(document.documentElement).colorScheme") == "light" and b.js("getComputedStyle(document.querySelector('.controls')).display") == "none")
    b.media("light")


def check_comparison(b):
    b.open(address("page.html"))
    b.frames()
    check_values(b)
    check_controls(b)
    check_hiding(b)
    check_keys(b)
    check_themes(b)
    text = b.js("document.getElementById('comparisons').textContent")
    results = b.js("[...document.querySelectorAll('#runs tbody tr')].map(r => r.children[6].textContent).join()")
    check("results in percent have two decimals", re.fullmatch(r"([0-9]+[.][0-9]{2} %,?)+", results), results)
    check("the comparison's table and verdicts", "mac" in text and "told apart" in text and "95 % intervals" in text, text)
    check("what differs", "train.optim" in b.js("document.getElementById('settings').textContent"))
    check("layers as heat maps", b.js("document.querySelectorAll('#heats canvas').length") >= 3)
    check("a map has a row for each layer", b.js("document.querySelector('#heats canvas').height") == 2)
    b.mouse("#heats canvas", 0.5, 0.5)
    check("values of a layer", "step" in b.js("document.querySelector('.heat .tip').textContent"))
    quiet(b, "page.html")


def check_hostile(b):
    b.open(address("hostile.html"))
    b.frames()
    everything = b.js("document.body.textContent")
    for text in ("<script>window.harm=1<!--", "</script><script>window.harm=2</script>", "\"><img src=x onerror=window.harm=3>", "\u2028", "\ufffd"):
        check("stays text", text in everything, repr(text))
    check("nothing was run", b.js("window.harm === undefined && ({}).harm === undefined"))
    check("no element was made of a name", b.js("document.querySelectorAll('img:not([src^=\"data:image/svg+xml;base64,\"]), script:not([type]), iframe, object, embed').length") == 1)
    check("pictures are images", b.js("document.querySelectorAll('#analyses img').length") == 1)
    check("damaged lines are told", "4 damaged lines in log.jsonl" in everything)
    check("good lines are drawn", b.js(CURVES) > 0)
    b.js("new Promise(done => setTimeout(done, 300))")  # a picture with a script would run it by now
    check("still nothing was run", b.js("window.harm === undefined"))
    quiet(b, "hostile.html")


def check_searches(b):
    b.open(address("search.html"))
    b.frames()
    text = b.js("document.getElementById('searches').textContent")
    check("a sweep's best values", "sweep of lr" in text and "best values" in text, text)
    check("a sweep's picture", b.js("document.querySelectorAll('#searches img').length") >= 1)
    check("a tuning's budget", "tuning with equal budgets" in text and "search space" in text, text)
    ranks = b.js("[...document.querySelectorAll('#rank tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
    check("average and rank over two comparisons", len(ranks) == 2 and len(ranks[0]) == 5, ranks)
    tables = [json.load(open(os.path.join(work, c, "compare.json")))["table"]["rows"] for c in ("cmp", "cmp2")]
    for label, *values, mean, rank in ranks:
        own = [next(r["test_acc"] for r in rows if r["label"] == label) for rows in tables]
        place = [1 + sum(r["test_acc"] > v for r in rows) + (sum(r["test_acc"] == v for r in rows) - 1) / 2 for rows, v in zip(tables, own)]
        check("the mean", abs(float(mean) - statistics.mean(own)) < 0.01, (mean, own))
        check("the rank", float(rank) == statistics.mean(place), (rank, place))
    quiet(b, "search.html")


def check_many(b):
    seconds = b.open(address("many.html"))
    check("a hundred curves", b.js(CURVES) == 100, b.js(CURVES))
    print(f"100 runs of 1,000 points: {seconds:.2f} s until loaded and drawn, {os.path.getsize(os.path.join(work, 'many.html')) / 1e6:.1f} MB")
    b.mouse(".plot", 0.5, 0.5)
    check("values of some", "88 more" in b.js(TIP), b.js(TIP))
    quiet(b, "many.html")


with Browser() as browser:
    check_comparison(browser)
    check_hostile(browser)
    check_searches(browser)
    check_many(browser)
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
