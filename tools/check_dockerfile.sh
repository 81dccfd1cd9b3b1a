#!/usr/bin/env bash
# The steps of the Dockerfile where there is no engine for containers: in a clean root that debootstrap makes, with RUN by chroot,
# COPY by tar, ENV and WORKDIR as they say. Then `epl-launch` starts two workers in it, over MPI. Instead of the base image there is
# this root, of the same Ubuntu, without CUDA, for which no step asks. Needs root and debootstrap; 15 minutes on two cores.
#
#   tools/check_dockerfile.sh           in a folder for a moment
#   tools/check_dockerfile.sh ROOT      in this folder, which stays; what debootstrap has made there is not made again
#
# PROFILE=dev      compiles in the development profile: half the time
# MIRROR           from where the system comes; by default Ubuntu's archive, where the package ubuntu-keyring is installed: without
#                  it debootstrap has no key, and asks Debian unless a mirror is named
# SUITE            one of Debian in the place of Ubuntu: names of packages may be others there
set -euo pipefail

# What is mounted is gone when this process ends.
[ -n "${HAS_OWN_MOUNTS:-}" ] || HAS_OWN_MOUNTS=1 exec unshare --mount "$(realpath "$0")" ${1+"$(realpath -m "$1")"}
cd "$(dirname "$0")/.."

step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }

root=${1:-$(mktemp -d)}
end() {
    umount -l "$root/proc" "$root/dev" 2>/dev/null || true
    # Never what is in the machine's own /dev.
    [ "$#" = 1 ] || mountpoint -q "$root/dev" || mountpoint -q "$root/proc" || rm -rf --one-file-system "$root"
}
trap 'end "$@"' EXIT

step "a clean root"
if [ -e "$root/etc/os-release" ]; then
    grep PRETTY_NAME "$root/etc/os-release"
elif [ -n "${SUITE:-}" ]; then
    debootstrap --variant=minbase "$SUITE" "$root" "${MIRROR:-}"
else
    grep -q '^FROM .*-ubuntu24\.04$' Dockerfile || { echo "the base image is no Ubuntu 24.04: name its suite here" >&2; exit 1; }
    # A debootstrap that does not know the name yet makes it as all of Ubuntu, which it calls gutsy.
    debootstrap --variant=minbase --components=main,universe noble "$root" "${MIRROR:-}" gutsy
fi
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
cp /etc/resolv.conf "$root/etc/resolv.conf"

# What the image's step removes once it is installed stays compiled, for the program of the two workers.
variables=(HOME=/root CARGO_TARGET_DIR=/tmp/target PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
if [ -n "${SSL_CERT_FILE:-}" ]; then # whom this machine trusts, its image trusts
    cp "$SSL_CERT_FILE" "$root/etc/trusted.crt"
    variables+=(SSL_CERT_FILE=/etc/trusted.crt CARGO_HTTP_CAINFO=/etc/trusted.crt)
fi
folder=/
inside() { chroot "$root" env -i "${variables[@]}" sh -ec "cd '$folder'; $1" </dev/null; }
compiled=release
debug=            # what `cargo install` is given
release=--release # and `cargo build`, which knows no --debug
if [ "${PROFILE:-release}" = dev ]; then
    compiled=debug
    debug=--debug
    release=
fi

# One instruction a line.
while IFS= read -r line; do
    what=${line#* }
    case $line in
        '') continue ;;
        *) step "$line" ;;&
        FROM\ *) ;;
        ENV\ *) mapfile -d '' -t variables < <(env -i "${variables[@]}" bash -c "export $what; exec env -0") ;;
        WORKDIR\ *) folder=$what; mkdir -p "$root$folder" ;;
        'COPY . .') # what lies here, but for what .dockerignore names
            tar --create --anchored --exclude-from=<(sed 's|^|./|' .dockerignore) . | tar --extract --directory "$root$folder" ;;
        RUN\ *) inside "${what//cargo install/cargo install $debug}" ;;
        *) echo "not known: $line" >&2; exit 1 ;;
    esac
done < <(sed -e '/^ *#/d' -e ':more' -e '/\\$/{N;s/\\\n *//;b more' -e '}' Dockerfile)

step "its programs"
for program in epl epl-ckpt epl-corpus epl-launch; do inside "$program --version"; done

step "two workers"
inside "cargo build --locked $release --features mpi --example moe_t5"
inside "epl-launch --num_workers 2 -- /tmp/target/$compiled/examples/moe_t5 --data 2 --expert 2 --steps 3 --out /tmp/numbers" \
    2>&1 | tee "$root/tmp/said"
for expected in '2 processes over MPI' '\[worker 1\]'; do grep -q "$expected" "$root/tmp/said"; done

step done
