# Small image files for tests of the command. Sourced after lib.sh.
# shellcheck shell=bash
export ABAR_CACHE=$work/cache

declare -A jpegs=(
    [color]='/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H////6/+b9//j/2wBDASstLTw1PHZBQXb4pYyl+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj/wAARCAAQABQDASIAAhEBAxEB/8QAFwAAAwEAAAAAAAAAAAAAAAAAAAQFA//EABoQAAIDAQEAAAAAAAAAAAAAAAADAQJhMSH/xAAXAQADAQAAAAAAAAAAAAAAAAABAgME/8QAGREAAwADAAAAAAAAAAAAAAAAAAEDEiIx/9oADAMBAAIRAxEAPwCfROG1EYM0TgxROEk8hZ2FIR5wCjCojoB1XWbFY//Z'
    [gray]='/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H////6/+b9//j/wAALCAAQABQBAREA/8QAFwABAAMAAAAAAAAAAAAAAAAAAwIEBf/EABoQAAIDAQEAAAAAAAAAAAAAAAADAQJhMSH/2gAIAQEAAD8Az6JwaiMGhHnCdE4WKJwaFRHT/9k='
    [progressive]='/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H////6/+b9//j/2wBDASstLTw1PHZBQXb4pYyl+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj/wgARCAAQABQDASIAAhEBAxEB/8QAFwAAAwEAAAAAAAAAAAAAAAAAAAMEAv/EABYBAQEBAAAAAAAAAAAAAAAAAAECA//aAAwDAQACEAMQAAABn2xkCigdv//EABUQAQEAAAAAAAAAAAAAAAAAAAAR/9oACAEBAAEFAoiIiP/EABYRAQEBAAAAAAAAAAAAAAAAAAACEv/aAAgBAwEBPwGbbf/EABYRAQEBAAAAAAAAAAAAAAAAAAAhMf/aAAgBAgEBPwHUf//EABQQAQAAAAAAAAAAAAAAAAAAACD/2gAIAQEABj8CX//EABYQAQEBAAAAAAAAAAAAAAAAAAEAEP/aAAgBAQABPyEpmUy//9oADAMBAAIAAwAAABA4z//EABURAQEAAAAAAAAAAAAAAAAAAAAB/9oACAEDAQE/EBD/xAAXEQEBAQEAAAAAAAAAAAAAAAABACEx/9oACAECAQE/EBmOt//EABgQAAMBAQAAAAAAAAAAAAAAAAABYTEh/9oACAEBAAE/EJExc4SJCVaf/9k='
    [cmyk]='/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwAoHB4jHhkoIyEjLSsoMDxkQTw3Nzx7WF1JZJGAmZaPgIyKoLTmw6Cq2q2KjMj/y9ru9f///5vB////+v/m/f/4/8AAFAgAEAAUBEMRAE0RAFkRAEsRAP/EABgAAQEBAQEAAAAAAAAAAAAAAAAFAwQG/8QAIRAAAQMFAAIDAAAAAAAAAAAAAAIDEQEEFEFhEjIhMZH/2gAOBEMATQBZAEsAAD8AnW+jhxeEhKZLJTt9DF4apYnQKCPUYvDWlpNPoHnLfRZxeGTCZgFO30MXhTYYmPgFBHqMXhu45asK8HXKJVExFax+A//Z'
)
small_png='iVBORw0KGgoAAAANSUhEUgAAAAQAAAAEAgMAAADUn3btAAAADFBMVEVy0HRyiFGoMCowMAy/NomMAAAAEElEQVR4nGP4xXSHIYSBAQAMMgItZkbjswAAAABJRU5ErkJggg=='

# jpeg N [KIND]: a JPEG of 20 x 16 pixels on standard output. N is in a comment, so that files of different N differ.
jpeg() {
    printf '\xff\xd8\xff\xfe\x00\x06%04d' "$1"
    base64 -d <<<"${jpegs[${2-color}]}" | tail -c +3
}
png() { base64 -d <<<"$small_png"; } # 4 x 4
# jpeg_size WIDTH HEIGHT: a JPEG whose header says so.
jpeg_size() {
    local at
    jpeg 0 >"$work/sized"
    at=$(LC_ALL=C grep -obUaP '\xff\xc0\x00\x11' "$work/sized" | head -1 | cut -d: -f1)
    # shellcheck disable=SC2059
    printf "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $(($2 >> 8)) $(($2 & 255)) $(($1 >> 8)) $(($1 & 255)))" |
        dd of="$work/sized" bs=1 seek=$((at + 5)) conv=notrunc status=none
    cat "$work/sized"
}

# image_set DIR: classes cat and dog, 3 + 3 training and 2 + 2 test images.
image_set() {
    local class part i n=0
    for part in train:3 val:2; do
        for class in cat dog; do
            mkdir -p "$1/${part%:*}/$class"
            for ((i = 0; i < ${part#*:}; i++)); do
                n=$((n + 1))
                jpeg $n >"$1/${part%:*}/$class/$i.jpg"
            done
        done
    done
}
# Files changed less than two seconds ago are scanned again by the next command.
age() { find "$@" -exec touch -h -d '1 hour ago' {} +; }
