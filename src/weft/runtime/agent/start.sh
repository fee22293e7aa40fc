# Runs a user's command inside its own image, for dash, busybox and bash: nothing but builtins and `sleep`.
# It always ends with 0. How the command ended is in the file `exit`; a container that ends otherwise was killed, and
# is started once more to say so.
#
# Its names begin with weft_: one that the user's environment has, too, would be changed for the command.

weft_task=${WEFT_ROOT:-/weft}/task

weft_nap() { sleep 0.05 2>/dev/null || sleep 1; }

# weft_tell FILE TEXT: a full disk, or a folder that the agent has yet to make, is worth waiting for.
weft_tell() {
    weft_tries=0
    until { echo "$2" > "$weft_task/$1"; } 2>/dev/null; do
        weft_tries=$((weft_tries + 1))
        [ "$weft_tries" -lt 600 ] || return 0
        weft_nap
    done
}

# How often the kernel has killed in this container for want of memory.
weft_count_kills() {
    weft_kills=0
    for weft_file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
        [ -r "$weft_file" ] || continue
        while read -r weft_key weft_value; do
            [ "$weft_key" = oom_kill ] && weft_kills=$weft_value
        done < "$weft_file"
    done
}

# The most memory that this container had at once, in bytes, and its processor time, in microseconds; 0 is not known.
weft_measure() {
    weft_peak=0
    weft_cpu=0
    for weft_file in /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes; do
        [ ! -r "$weft_file" ] || read -r weft_peak < "$weft_file"
    done
    if [ -r /sys/fs/cgroup/cpuacct/cpuacct.usage ]; then
        read -r weft_value < /sys/fs/cgroup/cpuacct/cpuacct.usage
        weft_cpu=$((weft_value / 1000))
    elif [ -r /sys/fs/cgroup/cpu.stat ]; then
        while read -r weft_key weft_value; do
            [ "$weft_key" = usage_usec ] && weft_cpu=$weft_value
        done < /sys/fs/cgroup/cpu.stat
    fi
}

# weft_signal NAME: to every other process of the session that this shell leads. A group of its own for the command
# would take a terminal: without one dash and busybox have no job control. A shell that leads no session shares it with
# strangers; then it is the command alone.
weft_signal() {
    weft_found=
    for weft_file in /proc/[0-9]*/stat; do
        { read -r weft_line < "$weft_file"; } 2>/dev/null || continue
        weft_consider "$1" "${weft_line%% *}" ${weft_line##*) }
    done
}

# weft_consider NAME PID STATE PARENT GROUP SESSION ...
weft_consider() {
    [ "$6" = $$ ] || [ "$4" = "$weft_child" ] || return 0
    [ "$2" != $$ ] && [ "$3" != Z ] && [ "$3" != X ] || return 0
    weft_found=yes
    kill -s "$1" "$2" 2>/dev/null
}

weft_count_kills
if [ -e "$weft_task/begun" ]; then
    [ -s "$weft_task/exit" ] || weft_tell exit "killed $weft_kills"
    exit 0
fi
weft_kills_before=$weft_kills

trap 'trap "" TERM; weft_tell exit "143 0"; exit 0' TERM
until [ -e "$weft_task/go" ]; do weft_nap; done

weft_child=
weft_timer=
weft_stopping=
weft_stop() {
    [ -z "$weft_stopping" ] || return 0
    weft_stopping=yes
    weft_signal TERM
    (sleep "${WEFT_GRACE:-30}"; kill -s USR1 $$) &
    weft_timer=$!
}
trap 'weft_signal KILL' USR1
trap weft_stopping=early TERM  # not weft_stop yet: the timer that it starts would be taken for the command

# With job control the command's SIGINT is not ignored, as that of what runs in the background is.
set -m 2>/dev/null
weft_tell begun ""
# The one who waits for the command is a second shell: `wait` gives no status that a signal cannot spoil.
(
    trap : TERM
    if cd "${WEFT_CWD:-.}" 2>>"$weft_task/output"; then
        (exec "$@" </dev/null >>"$weft_task/output" 2>&1)
        weft_tell status $?
    else
        weft_tell status 126
    fi
) &
weft_child=$!
trap weft_stop TERM
[ "$weft_stopping" != early ] || { weft_stopping=; weft_stop; }
while kill -s 0 "$weft_child" 2>/dev/null; do wait "$weft_child" 2>/dev/null; done

trap '' TERM USR1
[ -z "$weft_timer" ] || kill -s KILL "$weft_timer" 2>/dev/null
weft_rounds=0
weft_found=yes
while [ -n "$weft_found" ] && [ "$weft_rounds" -lt 50 ]; do
    weft_signal KILL
    weft_rounds=$((weft_rounds + 1))
done
weft_code=137
if [ -s "$weft_task/status" ]; then read -r weft_code < "$weft_task/status"; fi
weft_count_kills
weft_measure
weft_tell used "$weft_peak $weft_cpu"
weft_tell exit "$weft_code $((weft_kills - weft_kills_before))"
exit 0
