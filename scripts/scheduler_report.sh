#!/bin/sh
# The shipped scheduler against peers on every registered scenario, over the range of contention: tables, and one JSON.
# usage: scheduler_report.sh --first-seed S --json FILE [--seeds N] [--only NAME,...]   (needs build/release/bin/tessera)
exec python3 "$(dirname "$0")/scheduler_report.py" "$@"
