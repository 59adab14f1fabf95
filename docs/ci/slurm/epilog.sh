#!/bin/sh
# After a job: slurm.conf gets
#
#     Epilog=/etc/slurm/gpudiag/epilog.sh
#
# The node is drained with the reason before anyone else gets it. The epilog itself fails only where that
# could not be done: then Slurm drains the node, with "Epilog error" for a reason.

# shellcheck source-path=SCRIPTDIR source=check-node.sh
. "${0%/*}/check-node.sh"
check_node epilog
[ $? -ne 2 ]
