"""What an interactive zsh makes of `tessera ...` and the tabulator key. usage: complete_in_zsh.py WORDS EXPECTED
Exit 1 unless the line becomes EXPECTED."""
import os
import pty
import re
import select
import sys
import time

words, expected = sys.argv[1:3]
child, terminal = pty.fork()
if child == 0:
    os.environ["TERM"] = "dumb"
    os.execvp("zsh", ["zsh", "-f", "-i"])


def until(text, seconds=60):
    seen, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(terminal, 4096).decode(errors="replace"))
        if text in seen.replace("\b", ""):
            return
    sys.exit(f"no '{text}' in: {seen!r}")


os.write(terminal, b"PROMPT=; autoload -Uz compinit; compinit -u -D; print rea''dy\n")
until("ready")
os.write(terminal, (words + "\t").encode())
until(expected)
os.close(terminal)
