#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: the CUDA tests, then the CUDA benchmarks into benchmarks/results/gpu.json.
# Takes less than four minutes. Uses .venv if there is one, else `python3`; PYTHON=... names another.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
  if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; else PYTHON=python3; fi
fi

if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "gpu.sh: PyTorch sees no CUDA device here; nothing was tested or measured" >&2
  exit 1
fi

# The figures are worth having even where a test fails.
failed=0
timeout 105 "$PYTHON" -m pytest -q -m gpu tests/test_gpu.py || failed=1
timeout 130 "$PYTHON" benchmarks/gpu.py "$@" || failed=1
exit "$failed"
