#!/bin/sh
# After a job: slurm.conf gets
#
#     Epilog=/etc/slurm/gpudiag/epilog.sh
#
# The node is drained with the reason before anyone else gets it. The epilog itself never fails: Slurm
# would drain the node once more, with "Epilog error" for a reason.

# shellcheck source-path=SCRIPTDIR source=check-node.sh
. "${0%/*}/check-node.sh"
check_node epilog || :
