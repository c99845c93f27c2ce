#!/bin/sh
# Makes the tars of this folder again, from GNU tar and bsdtar as installed. What they write depends on their versions
# and on the file system, so the tars are kept, and this is the record of how each was made.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
long=$(printf 'n%.0s' $(seq 120))
mkdir -p plain/folder odd/"$long" v1.2 __meta__
printf 'jpg' > plain/0001.jpg; printf '7' > plain/0001.cls; : > plain/0002.jpg; head -c 700 /dev/zero > plain/0002.cls
printf 'x' > plain/folder/0003.seg.png
printf 'long' > "odd/$long/$long.txt"; printf 'umlaut' > "odd/k$(printf '\303\266')ln.txt"
printf 'latin' > "$(printf 'odd/\377.txt')"; printf 'hidden' > odd/.hidden; printf 'none' > odd/none
printf 'break' > "$(printf 'odd/line\nbreak.txt')"; printf 'dot' > v1.2/a.b.c; printf '{}' > __meta__/info.json
ln -s 0001.jpg plain/link.jpg; ln plain/0001.jpg plain/same.jpg; mkfifo plain/pipe.jpg
head -c 3000 /dev/zero > sparse.bin; truncate -s 1M sparse.bin
all="plain odd v1.2 __meta__"
gnu() { name=$1; shift; tar --blocking-factor=2 --sort=name --owner=0 --group=0 --mtime=@1700000000 "$@" -cf "$here/gnu-$name.tar"; }
bsd() { name=$1; shift; bsdtar -b 2 --uid 0 --gid 0 -cf "$here/bsd-$name.tar" "$@"; }
for format in gnu oldgnu posix; do gnu $format --format=$format $all; done
gnu ustar --format=ustar plain v1.2 __meta__
gnu v7 --format=v7 --exclude=pipe.jpg plain v1.2 __meta__  # which knows no pipes
gnu sparse --format=gnu --sparse sparse.bin
gnu posix-sparse --format=posix --sparse sparse.bin
gnu posix-times --format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,atime:=1.5,comment=odd plain
gnu posix-global --format=posix --pax-option=comment=all plain
gnu dot --format=gnu -C plain .
gnu label --format=gnu --label=volume plain
gnu incremental --format=gnu --listed-incremental="$work/snapshot" plain
for format in pax gnutar; do bsd $format --format=$format $all; done
for format in ustar v7; do bsd $format --format=$format plain v1.2 __meta__; done
bsd cpio-not-a-tar --format=newc plain v1.2
