# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The createRuntime hook in CDI specs: sh hook.sh PYTHON HOOK.PY SOCKET CLAIM-UID SECONDS, with the container's OCI
# state on standard input. If the claim's devices are already configured in the container's namespace, because they were
# attached early or the container restarts, this script exits with status 0. That takes a tenth of the time that Python
# needs to start, and every container start waits for the hook. In all other cases HOOK.PY (hook/program.py) decides,
# with the same checks.

python=$1 program=$2 socket=$3 uid=$4 seconds=$5
state= line=
while IFS= read -r line || [ -n "$line" ]; do
    state="$state$line
"
done

folder=${socket%/*}
if [ -e "$folder/attached/$uid" ]; then
    # no other key of this name has a number (hook/program.py, process_id)
    rest=$state pid=
    while [ -z "$pid" ]; do
        case $rest in
            *'"pid":'*) rest=${rest#*'"pid":'} ;;
            *) break ;;
        esac
        value=${rest#"${rest%%[! ]*}"}
        pid=${value%%[!0-9]*}
    done
    if [ -n "$pid" ] && [ "/proc/$pid/ns/net" -ef "$folder/netns/$uid" ]; then
        # record that a container has started for a claim that was attached early; 'lanewise-driver doctor' checks this
        if [ -e "$folder/early/$uid" ]; then
            { echo started >"$folder/early/$uid"; } 2>/dev/null
        fi
        exit 0
    fi
fi
printf '%s' "$state" | "$python" -I -S "$program" "$socket" "$uid" "$seconds"
