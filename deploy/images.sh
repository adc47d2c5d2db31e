#!/bin/sh
# Push the images: images.sh REGISTRY VERSION PLATFORM, as images.sh ghcr.io/owner 0.2.0 linux/arm64
#
# With a PLATFORM it builds and starts those of that platform, on a machine of that platform: Java crashes in emulators.
# Without one it gives the images of both platforms, which are pushed by then, their common name. It needs a Docker with
# buildx that is logged in at REGISTRY.
set -eu
registry=$1 version=$2 platform=${3:-}
cd "$(dirname "$0")/.."

for target in worker oscillator lake; do
    case $target in
    worker) image=$registry/kafka-timers:$version ;;
    *) image=$registry/kafka-timers-$target:$version ;;
    esac
    if [ "$platform" ]; then
        image=$image-${platform#linux/}
        docker buildx build --file deploy/Dockerfile --target "$target" --platform "$platform" \
            --sbom=true --provenance=mode=max --tag "$image" --push .
        docker run --rm "$image" --version
    else
        docker buildx imagetools create --tag "$image" "$image-amd64" "$image-arm64"
    fi
done
