#!/bin/sh
# The whole way on the sample archives, without a network: archive, cache, look, preprocess, train.
# `make demo` runs it in the project's virtual environment; `sh examples/demo.sh` in the current one.
set -eu
cd "$(dirname "$0")/.."
export RLDS_HOME="${RLDS_HOME:-$PWD/.demo}" RLDS_OFFLINE=1

run() {
    printf '\n$ %s\n' "$1"
    eval "$1"
}

run "rlds list"
run "rlds download 'sample/*'"
run "rlds inspect sample/mountaincar-robohive"
run "rlds inspect sample/pendulum-d4rl"
run "rlds preprocess sample/pendulum-d4rl --fn examples/normalise.py:normalise"
run "rlds inspect sample/pendulum-d4rl@normalise"
run "python examples/behaviour_cloning.py sample/pendulum-d4rl"
run "python examples/behaviour_cloning.py sample/cartpole-minari --steps 500 --eval-every 250"
printf '\nEverything is in %s; make clean removes it.\n' "$RLDS_HOME"
