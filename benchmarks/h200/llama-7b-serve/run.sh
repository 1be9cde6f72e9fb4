#!/usr/bin/env bash
# One call of at most nine minutes on the card: OUT gets serve.csv and both studies.
set -euo pipefail
cd "$(dirname "$0")/../../.."
exec python3 -m benchmarks.h200.serve "${1:?usage: run.sh OUT [options of benchmarks.h200.serve]}" "${@:2}"
