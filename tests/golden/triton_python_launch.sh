#!/usr/bin/env bash
# Serves python@cpu with Triton 26.05; `accel verify` checks this folder.
# In docker, from this folder:
#   docker run --rm --init --network host --shm-size 1g -v "$PWD":/models:ro \
#     nvcr.io/nvidia/tritonserver:26.05-py3 /models/launch.sh
# Its Python backend needs, for Python 3.12.3: numpy
# PYTHON_ENV names a virtual environment that has them, ACCEL_SITE_PACKAGES further folders to search.
# Listens on this machine only; ADDRESS=0.0.0.0 ./launch.sh serves the network.
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
address="${ADDRESS:-127.0.0.1}"
if [[ -n "${PYTHON_ENV:-}" ]]; then export PATH="$PYTHON_ENV/bin:$PATH"; fi
exec "${TRITONSERVER:-tritonserver}" \
  --model-repository="$here" \
  --disable-auto-complete-config \
  --http-address="$address" --http-port="${HTTP_PORT:-8000}" \
  --grpc-address="$address" --grpc-port="${GRPC_PORT:-8001}" \
  --metrics-address="$address" --metrics-port="${METRICS_PORT:-8002}" \
  "$@"
