# Read by prolog.sh and epilog.sh: judges the node's GPUs, and drains it where no job should start.
# POSIX sh. slurmd sets no PATH, so every program is named in full or found on the PATH set here.

# Where things are, and the site's policy; set them in this file, or before it is read.
: "${GPUDIAG:=/opt/gpudiag/bin/gpudiag}"
: "${GPUDIAG_LEVEL:=instant}"          # readings only: under 2 seconds, and nothing disturbs a running job
: "${GPUDIAG_SECONDS:=20}"             # after that gpudiag is killed, and has given no answer
: "${GPUDIAG_UNSURE:=drain}"           # where it reached no verdict, or gave no answer: drain; or run (the job)
: "${GPUDIAG_GPUS:=gres}"              # the node's GPUs, at least: by its Gres; or a number; or any
: "${GPUDIAG_EXPECT:=}"                # a report of this node, or one like it, when it was good; else empty
: "${GPUDIAG_REPORTS:=/var/log/gpudiag}" # one JSON report per job; used only if the directory is there
: "${SCONTROL:=/usr/bin/scontrol}"

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

node=$(uname -n)
node=${SLURMD_NODENAME:-${node%%.*}}

# Reports to the administrator: in the system log, else in slurmd's.
report() {
    logger -t gpudiag "$1" 2>/dev/null || echo "gpudiag: $1" >&2
}

# The controller's record of this node, on one line; nothing if it does not answer.
ask_controller() {
    timeout -k 1 5 "$SCONTROL" --oneliner show node "$node" 2>/dev/null
}

# field LINE NAME: the value of NAME=value in that line, without spaces; nothing if it is not there.
field() {
    case " $1" in
    *" $2="*) ;;
    *) return 0 ;;
    esac
    value=" $1"
    value=${value#*" $2="}
    echo "${value%% *}"
}

# gpus_of GRES: how many GPUs that needs at least, such as gpu:h100:8(S:0-1),nic:2; nothing if unknown.
# Instances of MIG, such as gpu:1g.10gb:7, are no GPUs of their own, but some GPU holds them; so with shards.
gpus_of() {
    [ -n "$1" ] || return 0
    total=0
    parts=0
    for one in $(echo "$1" | sed -e 's/([^)]*)//g' -e 's/,/ /g'); do
        case $one in
        *[0-9]g.[0-9]*gb* | shard:* | mps:*)
            parts=1
            continue
            ;;
        gpu | gpu:* | gres[:/]gpu*) count=${one##*:} ;;
        *) continue ;;
        esac
        case $count in
        *[!0-9]*) count=1 ;; # gpu, or gpu:h100
        esac
        total=$((total + count))
    done
    [ "$total" -gt 0 ] && echo "$total" || echo "$parts"
}

# drain LINE REASON: drains this node, unless it is drained already: an administrator's reason stays.
# 0 once it is drained.
drain() {
    case $(field "$1" State) in
    *DRAIN*) return 0 ;;
    esac
    timeout -k 1 10 "$SCONTROL" update NodeName="$node" State=DRAIN Reason="$2" && return 0
    report "could not drain $node: $2"
    return 1
}

# judge REPORT: asks gpudiag. Its exit status is in $status, its one-line reason in $reason, and what else it
# printed last in $last. With REPORT it writes one, too.
judge() {
    printed=$(timeout -k 5 "$GPUDIAG_SECONDS" "$GPUDIAG" preflight --level "$GPUDIAG_LEVEL" --fail-on machine --reason \
        ${gpus:+--at-least-gpus "$gpus"} ${GPUDIAG_EXPECT:+--expect "$GPUDIAG_EXPECT"} \
        ${1:+--report "$1"} 2>&1)
    status=$?
    reason=$(printf '%s\n' "$printed" | grep '^gpudiag [A-Z]' | tail -n 1)
    last=$(printf '%.150s\n' "$printed" | grep -v '^gpudiag [A-Z]' | tail -n 1)
}

# Why there is no verdict: the reason of a node that nobody could judge.
describe_no_verdict() {
    case $status in
    3) words="reached no verdict" ;;
    124 | 137) words="was killed or gave no answer in $GPUDIAG_SECONDS s" ;;
    126 | 127) words="cannot be started" ;;
    *) words="ended without a verdict" ;;
    esac
    printf '%.199s\n' "${reason:-gpudiag $words (exit status $status)${last:+: $last}}"
}

# check_node prolog|epilog: 0 if a job may start here. 1 if not: the node is drained then; 2 if it should be
# and could not be.
#
# gpudiag's exit status 1 means that no job should start here, whoever must act. 3 means that it reached no verdict;
# 2 (a wrong flag), 70 (a bug of gpudiag), 124 and 137 (too late, or killed), 126 and 127 (not there), and any
# other shows nothing of the node at all. What then happens is GPUDIAG_UNSURE: a node that nobody can judge is
# drained, unless the site sets `run`.
check_node() {
    about=$(ask_controller)
    case $GPUDIAG_GPUS in
    gres) gpus=$(gpus_of "$(field "$about" Gres)") ;;
    any) gpus= ;;
    *) gpus=$GPUDIAG_GPUS ;;
    esac
    report=
    if [ -d "$GPUDIAG_REPORTS" ] && [ -w "$GPUDIAG_REPORTS" ]; then
        report="json=$GPUDIAG_REPORTS/${SLURM_JOB_ID:-unknown}.$1.json"
    fi
    judge "$report"
    case $status:$report in
    [23]:?*) judge "" ;; # a report that cannot be written shows nothing of the node
    esac
    case $status in
    0) return 0 ;;
    1) why=${reason:-gpudiag FAIL: ${last:-see its report}} ;;
    *)
        why=$(describe_no_verdict)
        report "$1 of job ${SLURM_JOB_ID:-unknown}: no verdict, exit status $status ($why)"
        [ "$GPUDIAG_UNSURE" != run ] || return 0
        ;;
    esac
    drain "$about" "$why" || return 2
    return 1
}
