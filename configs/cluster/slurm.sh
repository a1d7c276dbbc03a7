#!/bin/bash
# Ray on the nodes of a Slurm job, and a driver on the first: `sbatch configs/cluster/slurm.sh`.
#
# Change: nodes, GPUs and cores, the environment, the driver's command. Then docs/cluster.md, "Several nodes".
#SBATCH --job-name=ptxgym
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=128
#SBATCH --time=24:00:00
set -euo pipefail

source "$HOME/ptxgym-venv/bin/activate" # python3 -m venv; pip install "ptxgym[cluster,toolchain,gpu]"

# A token of this job, in a folder that all nodes see; without one, whoever reaches the head runs code as you.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/.ray/token-$SLURM_JOB_ID"
(umask 077 && mkdir -p "$HOME/.ray" && python3 -c 'import secrets; print(secrets.token_hex(32), end="")' >"$RAY_AUTH_TOKEN_PATH")
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

# Builds are kept on each node's own disk; sockets need a short path.
export PTXGYM_CACHE="/tmp/ptxgym-$USER" RAY_TMPDIR="/tmp/ray-$SLURM_JOB_ID"

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(getent ahostsv4 "$head" | awk 'NR == 1 { print $1 }'):6379

srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --node-ip-address="${address%:*}" --port=6379 --num-cpus="$SLURM_CPUS_PER_TASK" --block &
until ray status --address="$address" >/dev/null 2>&1; do sleep 2; done
if ((SLURM_NNODES > 1)); then
  srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$head" \
    ray start --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
fi
until (($(ray status --address="$address" | grep -c ' node_') >= SLURM_NNODES)); do sleep 2; done

export RAY_ADDRESS="$address"
ptxgym serve --backend ray --tier rl --results runs/serve --host 0.0.0.0
