# Read by prolog.sh and epilog.sh: judges the node's GPUs, and drains it if the hardware is at fault.
# POSIX sh. slurmd sets no PATH, so every program is named in full or found on the PATH set here.

# Where things are; set them in this file, or before it is read.
: "${GPUDIAG:=/opt/gpudiag/bin/gpudiag}"
: "${GPUDIAG_LEVEL:=instant}"          # readings only: under 2 seconds, and nothing disturbs a running job
: "${GPUDIAG_SECONDS:=20}"             # after that we go on without an answer
: "${GPUDIAG_REPORTS:=/var/log/gpudiag}" # one JSON report per job; used only if the directory is there
: "${SCONTROL:=/usr/bin/scontrol}"

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# Says something to the administrator: in the system log, else in slurmd's.
tell() {
    logger -t gpudiag "$1" 2>/dev/null || echo "gpudiag: $1" >&2
}

# Drains this node with that reason, unless it is drained already: an administrator's reason stays.
drain() {
    case "$("$SCONTROL" --oneliner show node "$SLURMD_NODENAME" 2>/dev/null)" in
    *State=*DRAIN*) return 0 ;;
    esac
    "$SCONTROL" update NodeName="$SLURMD_NODENAME" State=DRAIN Reason="$1" ||
        tell "could not drain $SLURMD_NODENAME: $1"
}

# check_node prolog|epilog: 1 if the hardware FAILs, and then the node is drained; 0 in every other case.
#
# Only exit status 1 speaks about the hardware. 2 (a wrong flag), 3 (could not tell), 70 (a bug of
# gpudiag), 124 and 137 (too late) and 127 (not installed) are told, and never drain a node.
check_node() {
    report=
    if [ -d "$GPUDIAG_REPORTS" ] && [ -w "$GPUDIAG_REPORTS" ]; then
        report="json=$GPUDIAG_REPORTS/${SLURM_JOB_ID:-unknown}.$1.json"
    fi
    reason=$(timeout -k 5 "$GPUDIAG_SECONDS" "$GPUDIAG" preflight --level "$GPUDIAG_LEVEL" \
        --fail-on hardware --reason ${report:+--report "$report"} 2>/dev/null)
    status=$?
    case $status in
    0) return 0 ;;
    1)
        drain "${reason:-gpudiag FAIL: see its report}"
        return 1
        ;;
    *)
        tell "$1 of job ${SLURM_JOB_ID:-unknown}: no verdict, exit status $status ${reason:+($reason)}"
        return 0
        ;;
    esac
}
