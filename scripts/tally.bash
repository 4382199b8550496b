# tally.bash - run steps and programs, and keep count. Sourced by scripts/check,
# scripts/lint, scripts/fuzz and .ci/run, which end with tally_end.
#
# A program that prints "N passed, N failed" or "N passed, N failed, N skipped"
# as its last such line counts as that many tests; one without counts as one.
# An exit status other than 0 is at least one failure. The output of a failed
# program is shown, of others not; its lines "failed: NAME", which say what in
# it failed, are said again at the end. While it runs its last line is shown
# every TALLY_EVERY seconds.
# shellcheck shell=bash

tally_passed=0
tally_failed=0
tally_skipped=0
tally_names=()
tally_begun=0
tally_log= # of the one that ended last
declare -A tally_runs=() # by pid: pid of its ticks, when it began, log, name
tally_dir=$(mktemp -d)
# Not in the shells of what runs beside: until they have begun they have these.
trap '[[ $BASHPID != "$$" ]] || rm -rf "$tally_dir"' EXIT
trap '[[ $BASHPID == "$$" ]] || exit; kill "${!tally_runs[@]}"; exit 130' INT TERM

# tally_ticks NAME LOG: shows how far it is until it is ended, or this shell has
# been. It waits on a pipe that says nothing, not in a sleep, which would outlive
# it.
tally_ticks()
{
    local start=$SECONDS silence
    exec {silence}<> <(:)
    while ! read -r -t "${TALLY_EVERY:-15}" -u "$silence" && kill -0 $$; do
        printf '     %s, %d s: %.60s\n' "$1" $((SECONDS - start)) \
            "$(tail -n 1 "$2" | tr -cd '[:print:]')"
    done
}

# tally NAME COMMAND...: runs it alone, counts, prints one line.
tally()
{
    tally_join
    tally_beside "$@"
    tally_next
}

# tally_beside NAME COMMAND...: starts it as soon as fewer run than there are
# cores; those that end meanwhile are counted.
tally_beside()
{
    local name=$1
    while ((${#tally_runs[@]} >= $(nproc))); do
        tally_next || true
    done
    tally_log=$tally_dir/$((++tally_begun))
    shift
    "$@" >"$tally_log" 2>&1 </dev/null &
    set -- $!
    tally_ticks "$name" "$tally_log" &
    tally_runs[$1]="$! $EPOCHREALTIME $tally_log $name"
}

# Counts all that run.
tally_join()
{
    while ((${#tally_runs[@]})); do
        tally_next || true
    done
}

# Waits until one of those that run has ended, and counts it.
tally_next()
{
    local pid ticks start name rc=0 passed=0 failed=0 skipped=0 line took
    wait -n -p pid "${!tally_runs[@]}" || rc=$?
    read -r ticks start tally_log name <<<"${tally_runs[$pid]}"
    unset "tally_runs[$pid]"
    kill "$ticks" || true
    wait "$ticks" 2>/dev/null || true
    took=$(((${EPOCHREALTIME/[.,]/} - ${start/[.,]/}) / 1000))
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed' "$tally_log" | tail -n 1) ||
        true
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)? ]]
    then
        passed=${BASH_REMATCH[1]}
        failed=${BASH_REMATCH[2]}
        skipped=${BASH_REMATCH[4]:-0}
    elif ((rc == 0)); then
        passed=1
    fi
    if ((rc != 0 && failed == 0)); then
        failed=1
    fi
    tally_passed=$((tally_passed + passed))
    tally_failed=$((tally_failed + failed))
    tally_skipped=$((tally_skipped + skipped))
    printf '%-4s %-36s %5d passed %5d failed %7d.%01d s%s\n' \
        "$( ((failed)) && echo FAIL || echo ok)" "$name" "$passed" "$failed" \
        $((took / 1000)) $((took % 1000 / 100)) \
        "$( ((!skipped)) || echo "  $skipped skipped")"
    if ((failed)); then
        tally_names+=("$name")
        while read -r line; do
            tally_names+=("$name: ${line#failed: }")
        done < <(grep -a '^failed: ' "$tally_log" | tail -n 20)
        tally_show "$rc"
    fi
    ((failed == 0))
}

# The end of the log is where the reason is; the limit keeps a terminal usable.
tally_show()
{
    local lines
    lines=$(wc -l <"$tally_log")
    if ((lines > 200)); then
        echo "     | ($((lines - 200)) lines left out)"
    fi
    tail -n 200 "$tally_log" | sed 's/^/     | /'
    case $1 in
    0) ;;
    124 | 137) echo "     | ended for taking too long (exit status $1)" ;;
    *) echo "     | exit status $1" ;;
    esac
}

# The closing line and the exit status.
tally_end()
{
    if ((tally_failed)); then
        printf 'failed: %s\n' "${tally_names[@]}"
    fi
    echo "$tally_passed passed, $tally_failed failed, $tally_skipped skipped"
    ((tally_failed == 0))
}
