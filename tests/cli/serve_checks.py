"""abar serve on this machine: what is answered and what is refused, over raw sockets; and the live page in Chromium where there is one.
Arguments: abar, and a folder to work in, which has run/ (a run), secret (a text that must never be sent) and beside/ (a run that is not
served, whose log has that text). Prints a line for each case that does not hold, and the counts last."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import browser

abar, work = sys.argv[1:]
secret = open(os.path.join(work, "secret"), "rb").read().strip()
served = os.path.join(work, "served")
passed, failed = 0, 0


def check(name, holds, what=""):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print(f"WRONG: {name} {what}")


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([abar, "serve", served, "--port", "0", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.line = self.process.stdout.readline()
        found = re.match(r"http://(\S+):(\d+)/(\S*) shows ", self.line)
        self.host, self.port, self.url = found[1], int(found[2]), self.line.split()[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def connect(self):
        address = "127.0.0.1" if self.host == "0.0.0.0" else self.host.strip("[]")
        return socket.create_connection((address, self.port), timeout=60)

    def raw(self, request):
        """All that comes back for these bytes until the server closes; b'' if it closes at once."""
        with self.connect() as s:
            answer = b""
            try:
                s.sendall(request)
                s.shutdown(socket.SHUT_WR)
                while got := s.recv(1 << 16):
                    answer += got
            except OSError:  # it closed the connection
                pass
        return answer

    def ask(self, path, method="GET", host=None, **headers):
        """Status, headers and body."""
        lines = [f"{method} {path} HTTP/1.1", "Connection: close"]
        if host != "":
            lines.append(f"Host: {host or f'127.0.0.1:{self.port}'}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        answer = self.raw("\r\n".join(lines + ["", ""]).encode("latin-1"))
        head, _, body = answer.partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head[:5] == b"HTTP/" else 0), head.decode("latin-1").lower(), body

    def status(self, *arguments, **headers):
        status, _, body = self.ask(*arguments, **headers)
        check("nothing from outside", secret not in body, arguments)
        return status


def check_answers(s):
    status, head, body = s.ask("/")
    check("the page", status == 200 and body.startswith(b"<!doctype html>") and b"connect-src 'self'" in body)
    for name in ("cache-control: no-store", "x-content-type-options: nosniff", "referrer-policy: no-referrer", "x-frame-options: deny", "cross-origin-resource-policy: same-origin"):
        check(name, name in head, head)
    check("no other origin is allowed", "access-control" not in head)
    length = int(re.search(r"content-length: (\d+)", head)[1])
    status, head, body = s.ask("/", method="HEAD")
    check("HEAD", status == 200 and body == b"" and f"content-length: {length}" in head, head)
    status, _, body = s.ask("/data")
    check("the data", status == 200 and [r["path"] for r in json.loads(body)["runs"]] == ["a b%&", "run"], body[:200])
    status, _, body = s.ask("/poll")
    poll = json.loads(body)
    log = open(os.path.join(served, "run", "log.jsonl"), "rb").read()
    check("the poll", status == 200 and [(l["path"], l["id"]) for l in poll["logs"]] == [("a b%&", "a%20b%25%26"), ("run", "run")] and poll["logs"][1]["bytes"] == len(log), body)
    check("the stamp stays", json.loads(s.ask("/poll")[2])["stamp"] == poll["stamp"] == json.loads(s.ask("/data")[2])["live"])
    for start in (0, 1, len(log) - 3, len(log)):
        status, _, body = s.ask(f"/log/run?from={start}")
        check("bytes from an offset", status == 200 and body == log[start:], (start, status))
    check("an escaped name", s.ask("/log/a%20b%25%26?from=0")[2] == log)
    check("past the end", s.status(f"/log/run?from={len(log) + 1}") == 416)
    for start in ("", "-1", "+1", "1e3", "0x10", " 1", "9" * 16, "9" * 30, "1%00"):
        check("a wrong offset", s.status("/log/run?from=" + start.replace(" ", "%20")) == 400, start)
    check("no offset", s.status("/log/run") == 400)


def check_paths(s):
    up = ["..", "%2e%2e", ".%2e", "%2E.", "..%2f", "%2e%2e%2f", "..\\", "....//", "%c0%ae%c0%ae", "%252e%252e", ".", "%2e"]
    for text in up:
        for path in (f"/log/{text}/beside", f"/log/run/{text}/{text}/beside", f"/log/{text}", f"/{text}/beside/log.jsonl", f"/{text}/secret"):
            check("a way up", s.status(path + "?from=0") in (400, 404), path)
    paths = ["/log//etc", "/log/run/", "/log//run", "/log/run/log.jsonl", "/log/.git", "/log/run%00", "/log/%", "/log/%4", "/log/%zz", "/log/run%2f..", "/log", "/run/log.jsonl",
             "/run/config.json", "/etc/passwd", "/data/", "//", "/index.html", "/favicon.ico", "/poll/x", "/log/" + "a" * 300, "/log/" + "run/" * 1500]
    for path in paths:
        check("a path that is none", s.status(path + "?from=0") == 404, path)
    for path in ("/log/link-folder", "/log/link-file", "/log/link-up/beside", "/log/link-folder/x", "/log/pipe", "/log/folder"):
        check("a link, a pipe or a folder for a log", s.status(path + "?from=0") == 404, path)
    check("an absolute address", s.ask(f"http://127.0.0.1:{s.port}/../beside/log.jsonl?from=0")[0] != 200)
    everything = s.ask("/")[2] + s.ask("/data")[2] + s.ask("/poll")[2]
    check("no link is followed for the page", secret not in everything)


def check_strangers(s):
    port = s.port
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        check("a name of this machine", s.status("/poll", host=host) == 200, host)
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "localhost", f"127.0.0.1:{port + 1}", f"localhost.evil.example:{port}", f"127.0.0.1:{port}.evil.example", f"2130706433:{port}",
                 f"evil@127.0.0.1:{port}", f"127.0.0.1:{port}/", f"127.0.0.1:{port} ,x"):
        check("a foreign Host", s.status("/poll", host=host) == 403, host)
    check("no Host", s.status("/poll", host="") in (0, 400, 403))
    answer = s.raw(f"GET /poll HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    check("two Hosts", not answer.startswith(b"HTTP/1.1 200"), answer[:80])
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", f"http://localhost:{port}", f"http://127.0.0.1:{port}.evil.example", f"http://127.0.0.1:{port + 1}", "file://"):
        check("a foreign Origin", s.status("/data", Origin=origin) == 403, origin)
    check("its own Origin", s.status("/data", Origin=f"http://127.0.0.1:{port}") == 200)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get", "X" * 50):
        check("another method", s.status("/", method=method) == 405, method)


def check_oversized(s):
    host = f"Host: 127.0.0.1:{s.port}\r\n".encode()
    requests = {
        "a long path": b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        "a long query": b"GET /poll?" + b"a=b&" * 50000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        "a long header": b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 1000000 + b"\r\n\r\n",
        "many headers": b"GET / HTTP/1.1\r\n" + host + b"".join(b"X%d: y\r\n" % i for i in range(20000)) + b"\r\n",
        "a large body": b"POST / HTTP/1.1\r\n" + host + b"Content-Length: 20000000\r\n\r\n" + b"a" * 20000000,
        "a body for GET": b"GET / HTTP/1.1\r\n" + host + b"Content-Length: 5\r\n\r\nhello",
        "a body in pieces": b"GET / HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "a negative length": b"GET / HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n",
        "a huge length": b"GET / HTTP/1.1\r\n" + host + b"Content-Length: 99999999999999999999999\r\n\r\n",
        "no HTTP": b"\x16\x03\x01\x02\x00\x01" * 300 + b"\r\n\r\n",
        "zero bytes": b"GET /\0 HTTP/1.1\r\n" + host + b"\0: \0\r\n\r\n",
        "HTTP/0.9": b"GET /\r\n",
        "HTTP/9.9": b"GET / HTTP/9.9\r\n" + host + b"\r\n",
        "nothing": b"",
    }
    for name, request in requests.items():
        answer = s.raw(request)
        check(f"{name}: refused", name == "zero bytes" or not re.match(rb"HTTP/1.. 2", answer) and secret not in answer, answer[:80])  # libmicrohttpd ends a path at a zero byte
        check(f"{name}: the server goes on", s.status("/poll") == 200)


def check_many(s):
    """200 connections at once: some idle, some half way in a request, some asking. All that ask get an answer when the others leave."""
    idle = [s.connect() for _ in range(100)]
    for i, c in enumerate(idle):
        if i % 2:
            c.sendall(b"GET / HTTP/1.1\r\nHost: 127.0")
    answers = []

    def ask():
        answers.append(s.status("/data"))

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for t in threads:
        t.start()
    for c in idle:
        c.close()
    for t in threads:
        t.join()
    check("200 connections", answers == [200] * 100, answers)
    with open(f"/proc/{s.process.pid}/status") as status:
        peak = int(re.search(r"VmHWM:\s+(\d+)", status.read())[1])
    print(f"peak of the server's memory: {peak // 1024} MiB")
    check("its memory is bounded", peak < 400 * 1024, peak)


def check_race(s):
    """A folder that becomes a link to the outside and back, while its log is asked for and the page is made."""
    there, away, link = (os.path.join(served, n) for n in ("swap", ".swap-folder", ".swap-link"))
    shutil.copytree(os.path.join(work, "run"), there)
    os.symlink("../beside", link)
    end = threading.Event()

    def swap():
        while not end.is_set():
            os.rename(there, away)
            os.rename(link, there)
            os.rename(there, link)
            os.rename(away, there)

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    for i in range(400):
        status, _, body = s.ask("/log/swap?from=0") if i % 10 else s.ask("/data")
        seen.add(status)
        check("no byte from behind the link", secret not in body)
    end.set()
    thread.join()
    check("nothing but answers and refusals", seen <= {200, 404}, seen)
    shutil.rmtree(there)
    os.unlink(link)


def check_end(s):
    for number in (signal.SIGINT, signal.SIGTERM):
        with Server() as other:
            held = other.connect()
            held.sendall(b"GET /")
            other.process.send_signal(number)
            out, err = other.process.communicate(timeout=60)
            check("it ends cleanly", other.process.returncode == 0 and out == "" and err == "", (other.process.returncode, out, err))
            held.close()
    busy = subprocess.run([abar, "serve", served, "--port", str(s.port)], capture_output=True, text=True)
    check("a port in use", busy.returncode != 0 and f"port {s.port}: " in busy.stderr and busy.stderr.count("\n") == 1, busy.stderr)


def check_token():
    token = "0123456789-abcdef_X"
    for flags in (["--bind", "0.0.0.0"], []):
        with Server("--token", token, *flags) as s:
            check("its address has the token", s.url.endswith(f"/?token={token}"), s.line)
            for path in ("/", "/data", "/poll", "/log/run?from=0"):
                join = "&" if "?" in path else "?"
                check("without the token", s.status(path) == 401, path)
                check("with another", s.status(path + join + "token=" + token[:-1]) == 401 and s.status(path, Authorization="Bearer x") == 401, path)
                check("with a longer one", s.status(path + join + "token=" + token * 2) == 401, path)
                check("with the token", s.status(path + join + "token=" + token) == 200 and s.status(path, Authorization="Bearer " + token) == 200, path)
            check("a foreign Origin in spite of it", s.status("/data?token=" + token, Origin="http://evil.example") == 403)


def line(epoch, accuracy):
    return json.dumps({"epoch": epoch, "train_loss": 1.5, "train_acc": 50, "test_loss": 1.25, "test_acc": accuracy, "lr": 0.1, "seconds": 1, "skipped_steps": 0}) + "\n"


def wait_for(b, expression):
    """Seconds until it holds; a minute is a failure."""
    start = time.monotonic()
    while not b.js(expression):
        if time.monotonic() - start > 60:
            return None
        time.sleep(0.02)
    return time.monotonic() - start


def check_live(s):
    log = os.path.join(served, "run", "log.jsonl")
    last = "(r => r.epochs.test_acc[r.epochs.test_acc.length - 1])(data.runs.find(r => r.path === 'run'))"
    with browser.Browser() as b:
        b.open(s.url)
        b.frames()
        check("the page is live", wait_for(b, "document.getElementById('live').textContent === 'live'") is not None)
        waits = []
        for epoch in range(10, 14):
            with open(log, "a") as f:
                f.write(line(epoch, epoch + 0.5))
            waits.append(wait_for(b, f"{last} === {epoch + 0.5}"))
            check("new lines are shown", waits[-1] is not None)
        print(f"new lines were on the page after {', '.join(f'{w:.2f}' for w in waits if w is not None)} s")
        check("the curve has them", wait_for(b, "document.querySelector('#runs').textContent.includes('13 of')") is not None)
        b.js("document.querySelector('#legend input').click()")
        with open(log, "a") as f:
            f.write('damaged\n{"epoch": 14, "test_acc": 14.5, "</script><img src=x onerror=window.harm=1>": 3}\n{"step": 9999, "loss": 0.25}\n{"epoch": 15, "te')
        check("hostile and damaged lines", wait_for(b, f"{last} === 14.5") is not None and b.js("data.runs.find(r => r.path === 'run').damaged_lines") == 1)
        check("a half line waits", b.js("data.runs.find(r => r.path === 'run').epochs_done") == 14)
        check("a hidden curve stays hidden", b.js("document.querySelectorAll('.chart:first-child path.curve').length") == 1)
        with open(log, "a") as f:
            f.write('st_acc": 15.5}\n')
        check("until it is whole", wait_for(b, f"{last} === 15.5") is not None)
        lived = b.js("JSON.stringify(data.runs.find(r => r.path === 'run').series)")
        os.mkdir(os.path.join(served, "changes-the-stamp"))
        fresh = b.js("fetch('data').then(r => r.json()).then(d => { const run = d.runs.find(r => r.path === 'run'); prepare(run); return JSON.stringify(run.series); })")
        check("line by line or at once, it is the same", json.loads(lived) == json.loads(fresh), (lived, fresh))
        shutil.copytree(os.path.join(work, "run"), os.path.join(served, "zoë <b>"))
        check("a new run appears", wait_for(b, "data.runs.some(r => r.path === 'zoë <b>')") is not None)
        with open(os.path.join(served, "zoë <b>", "log.jsonl"), "a") as f:
            f.write(line(20, 77.5))
        check("and its lines", wait_for(b, "data.runs.find(r => r.path === 'zoë <b>').epochs.test_acc.includes(77.5)") is not None)
        with open(log, "w") as f:
            f.write(line(1, 33.5))
        check("a log that starts over", wait_for(b, f"{last} === 33.5 && data.runs.find(r => r.path === 'run').epochs.epoch.length === 1") is not None)
        big = {"step": 10000, "layers": [{"layer": f"layer{i}", "group": 0, "cosine": 0.5, "ratio": 1, "dropped": i % 2} for i in range(8000)]}
        with open(log, "a") as f:
            f.write(json.dumps(big) + "\n")
        check("a line that is longer than a piece", wait_for(b, "data.runs.find(r => r.path === 'run').layers?.names.length === 8000") is not None)
        check("nothing was run", b.js("window.harm === undefined"))
        check("no error and no warning", b.problems == [], b.problems)
        outside = [r for r in b.requests if not r.startswith((f"http://127.0.0.1:{s.port}/", "data:"))]
        check("nothing else is loaded", outside == [], outside)
        s.process.send_signal(signal.SIGINT)
        s.process.wait(60)
        check("the page tells that the server ended", wait_for(b, "document.getElementById('live').textContent !== 'live'") is not None)


with Server() as main:
    check_answers(main)
    check_paths(main)
    check_strangers(main)
    check_oversized(main)
    check_many(main)
    check_race(main)
    check_end(main)
check_token()
if browser.find():
    with Server() as main:
        check_live(main)
else:
    print("skipped: no Chromium, the live page is not looked at")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
