#!/usr/bin/env bash
# Builds what is given to users into build/package: the Debian packages `tessera` and `tesserad`, checked with lintian (debs/),
# and tessera-VERSION-linux-MACHINE.tar.zst, which needs nothing but glibc 2.28 or newer (tarball/). With arm64: the same for
# aarch64, by the cross compiler, into build/package-arm64.
# usage: scripts/package.sh [arm64] [deb] [tarball]    (default: both, for this machine)
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=() suffix='' machine=$(uname -m) setup=(--package) toolchain=() tools='' emulated=()
for word in "$@"; do
  case $word in
    deb | tarball) wanted+=("$word") ;;
    arm64)
      suffix=-arm64 machine=aarch64 setup+=(--arm64) toolchain=("-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/arm64.cmake")
      tools=aarch64-linux-gnu- emulated=(cmake/emulated.sh)
      export DEB_HOST_ARCH=arm64 ;;  # dpkg-shlibdeps reads it
    --help | -h) sed -n '2,5s/^# //p' "$0"; exit 0 ;;
    *) echo "package.sh: '$word' is none of: arm64, deb, tarball" >&2; exit 2 ;;
  esac
done
((${#wanted[@]})) || wanted=(deb tarball)
scripts/setup.sh "${setup[@]}"

# Manual pages say what --help says.
page() {  # folder, page, command...
  local folder=$1 name=$2 about
  shift 2
  mkdir -p "$folder"
  about=$("${emulated[@]}" "$@" --help | sed -n 1p)
  "${emulated[@]}" help2man --no-info --no-discard-stderr --version-string "$version" "$*" |
    sed "s/^\.TH .* \"1\"/.TH ${name^^} \"1\"/; /^\.SH NAME/{n;s/.*/$name \\\\- ${about//\//\\/}/}" | gzip -9n >"$folder/$name.1.gz"
}
pages() {  # build folder; into its packaging/man_tessera and man_tesserad
  local made=$1/packaging command
  version=$("${emulated[@]}" "$1"/bin/tessera --version)
  rm -rf "$made"/man_*
  local PATH="$PWD/$1/bin:$PATH"
  page "$made/man_tessera/man1" tessera tessera
  for command in $("${emulated[@]}" tessera --help | sed -n '/^Subcommands:/,$s/^  \([a-z-]*\) .*/\1/p'); do
    [[ $command != ptxas ]] || continue  # it says what the toolkit's ptxas says
    page "$made/man_tessera/man1" "tessera-$command" tessera "$command"
  done
  page "$made/man_tesserad/man1" tesserad tesserad
}

# The licences of what is linked in, static libraries and headers: the files of the packages that they are of, on this machine.
licences() {  # build folder; into its packaging/licences
  local out=$1/packaging/licences package source headers=(CLI/CLI.hpp boost/version.hpp fmt/core.h nlohmann/json.hpp spdlog/spdlog.h toml++/toml.h xxhash.h)
  rm -rf "$out" && mkdir -p "$out"
  { grep -oh '/usr/lib/[^ $]*\.a\b' "$1/build.ninja" | grep -v '/libg[mt]' | sort -u; g++ -print-file-name=libstdc++.a; printf '/usr/include/%s\n' "${headers[@]}"; } |
    sed "s/aarch64-linux-gnu/$(g++ -print-multiarch)/" | xargs realpath | xargs dpkg -S | cut -d: -f1 | sort -u |
    while read -r package; do cp -L "/usr/share/doc/$package/copyright" "$out/$package"; done
  for source in "$1"/prometheus/source/prometheus-cpp-*/; do
    [[ -d $source ]] || continue  # the Debian packages depend on Debian's
    cp "$source/LICENSE" "$out/prometheus-cpp"
    cp "$source/3rdparty/civetweb/LICENSE.md" "$out/civetweb"
  done
}

make_debs() {
  local build=build/package$suffix package
  cmake -S . -B $build -G Ninja "${toolchain[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DTESSERA_SHAPE=lib/tessera/ >/dev/null
  cmake --build $build --target quickstart
  pages $build
  licences $build
  gzip -9n <CHANGELOG.md >$build/packaging/changelog.gz
  for package in tessera tesserad; do
    mkdir -p $build/packaging/$package.doc
    cat <<ENTRY | gzip -9n >$build/packaging/$package.doc/changelog.Debian.gz
$package ($version-1) unstable; urgency=medium

  * What changed is in changelog.gz.

 -- Tessera maintainers <maintainers@tessera.invalid>  $(date -R -d "@$changed_s")
ENTRY
  done

  rm -rf $build/debs && mkdir $build/debs
  (cd $build && cpack -G DEB -B debs >/dev/null)
  mv $build/debs/_CPack_Packages/*.deb $build/debs 2>/dev/null || true
  rm -rf $build/debs/_CPack_Packages
  rm -rf $build/unpacked
  dpkg-deb -x "$(echo $build/debs/tessera_*.deb)" $build/unpacked
  scripts/check_portable.py --preload $build/unpacked
  lintian --fail-on error --tag-display-limit 0 $build/debs/*.deb
  ls $build/debs/*.deb
}

make_tarball() {
  local build=build/portable$suffix out=build/package$suffix/tarball prefix=opt/tessera name
  packaging/portable/prometheus.sh $build/prometheus "${toolchain[@]}"
  cmake -S . -B $build -G Ninja "${toolchain[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/$prefix -DTESSERA_PORTABLE=ON \
    -Dprometheus-cpp_DIR="$PWD/$build/prometheus/lib/cmake/prometheus-cpp" >/dev/null
  cmake --build $build --target quickstart
  pages $build
  licences $build
  name=tessera-$version-linux-$machine
  rm -rf $out && mkdir -p $out
  DESTDIR=$PWD/$out cmake --install $build --strip >/dev/null
  mv $out/$prefix $out/$name && rmdir $out/opt
  mkdir -p $out/$name/share/man/man1
  cp $build/packaging/man_*/man1/* $out/$name/share/man/man1
  cp CHANGELOG.md LICENSE $out/$name
  mkdir -p $out/$name/share/doc/tessera
  cp -r $build/packaging/licences $out/$name/share/doc/tessera
  find $out/$name -type f \( -perm -100 -o -name '*.so*' \) -exec sh -c 'head -c 4 "$1" | grep -q ELF && "$0"strip --strip-unneeded "$1"' "$tools" {} \;
  scripts/check_portable.py $out/$name
  scripts/check_portable.py --preload $out/$name
  tar -C $out --zstd --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$changed_s" -cf $out/$name.tar.zst $name
  rm -r "${out:?}/$name"
  ls $out/*
}

changed_s=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
for word in "${wanted[@]}"; do
  case $word in
    deb) make_debs ;;
    tarball) make_tarball ;;
  esac
done
