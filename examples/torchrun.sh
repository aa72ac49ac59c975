#!/bin/sh
# One training on all processes of one or several nodes, by plain torchrun:
#
#     sh examples/torchrun.sh gpt --data corpus.txt --out /shared/runs/gpt --size base --distributed fsdp
#
# On several nodes, start it on each of them with the same NODES and MASTER (a host and port that all of them reach).
# The arguments are those of lmlab train; --resume continues a run that was stopped, and starts one where there is none.
set -eu

NODES=${NODES:-1}                   # number of nodes
PROCESSES=${PROCESSES:-gpu}         # processes per node: one for each GPU, or a number, as on CPUs
MASTER=${MASTER:-localhost:29500}   # where the processes of all nodes meet

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="$NODES" --nproc-per-node="$PROCESSES" \
    --rdzv-backend=c10d --rdzv-endpoint="$MASTER" --rdzv-id="${RUN_ID:-lmlab}" \
    -m lmlab train "$@" --resume
