#!/usr/bin/env bash
# clang-tidy (.clang-tidy) and clang's own warnings over the C++ files that changed since REV, committed or not; a
# changed header is looked at through the .cc file of its name. Exit 77 where clang-tidy or clang is not installed.
# usage: scripts/tidy.sh [--base REV | --all | FILE...]    (default REV: origin/main, or main)
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  --help | -h) sed -n '2,4s/^# //p' "$0"; exit 0 ;;
  --base | --all | "") ;;
  -*) echo "tidy.sh: unknown option $1" >&2; exit 2 ;;
esac
for tool in clang++ clang-tidy; do
  command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
git rev-parse --verify -q HEAD >/dev/null || { echo "skipped: not a git checkout"; exit 77; }

changed_since() { git diff --name-only --diff-filter=d "$(git merge-base HEAD "$1" 2>/dev/null || echo HEAD)"; }
case "${1:-}" in
  "") files=$(changed_since "$(git rev-parse --verify -q origin/main || echo main)") ;;
  --base) files=$(changed_since "$2") ;;
  --all) files=$(git ls-files '*.cc') ;;
  *) files=$(printf '%s\n' "$@") ;;
esac
files=$(sed -n 's/\.\(h\|cc\)$/.cc/p' <<<"$files" | sort -u)
[[ -n $files ]] && cmake --preset clang >/dev/null
mapfile -t sources < <(while read -r file; do
  if [[ -e $file ]] && grep -qF "\"file\": \"$PWD/$file\"" build/clang/compile_commands.json; then echo "$file"; fi
done <<<"$files")
echo "tidy: ${#sources[@]} files"
((${#sources[@]})) || exit 0
printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P 2 clang-tidy -p build/clang --quiet 2>&1 |
  sed '/ warnings\{0,1\} generated\.$/d'
