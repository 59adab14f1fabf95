#!/bin/sh
# Before a job: slurm.conf gets
#
#     Prolog=/etc/slurm/gpudiag/prolog.sh
#     PrologFlags=Alloc
#
# An exit status other than 0 makes Slurm requeue the job, so that it starts on another node.

# shellcheck source-path=SCRIPTDIR source=check-node.sh
. "${0%/*}/check-node.sh"
check_node prolog
