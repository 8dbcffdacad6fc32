#!/usr/bin/env bash
# Serves onnxruntime@cpu with Triton 26.05; `accel verify` checks this folder.
# In docker, from this folder:
#   docker run --rm --init --network host --shm-size 1g -v "$PWD":/models:ro \
#     nvcr.io/nvidia/tritonserver:26.05-py3 /models/launch.sh
# Listens on this machine only; ADDRESS=0.0.0.0 ./launch.sh serves the network.
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
address="${ADDRESS:-127.0.0.1}"
exec "${TRITONSERVER:-tritonserver}" \
  --model-repository="$here" \
  --disable-auto-complete-config \
  --http-address="$address" --http-port="${HTTP_PORT:-8000}" \
  --grpc-address="$address" --grpc-port="${GRPC_PORT:-8001}" \
  --metrics-address="$address" --metrics-port="${METRICS_PORT:-8002}" \
  "$@"
