#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs `fwa check --verbose` and prints TAP, a line for each case; exits 1 if a check failed.
#
#     check_cases.sh TOOL [OPTION...]
#
# TOOL: the fwa command. OPTION: of `fwa check`. FWA_CASES in the environment: its --filter unless
# FWA_TEST_FULL=1.
set -u

tool=$1
shift
[ -n "${FWA_CASES:-}" ] && [ "${FWA_TEST_FULL:-0}" != 1 ] && set -- "$@" --filter "$FWA_CASES"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
"$tool" check --verbose "$@" > "$output" 2>&1
status=$?

# A gap is a case that the backend declares that it refuses.
awk '
    /^ok / || /^gap / { sub(/^[a-z]+ +/, ""); print "ok - " $0; cases++; next }
    /^FAIL / { sub(/^[A-Z]+ +/, ""); print "not ok - " $0; cases++; next }
    { print "# " $0 }
    / passed, / { ended = 1 }
    END { print (ended && cases ? "ok" : "not ok") " - all cases were run"; print "1.." cases + 1 }
' "$output"
[ "$status" -eq 0 ]
