#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over a small suite of the CUDA kernels; needs a card and one to two minutes.
#
#   scripts/sanitize.sh                      memcheck, racecheck, synccheck and initcheck
#   scripts/sanitize.sh memcheck synccheck   some of them
#   ONLY='pools|mla' scripts/sanitize.sh     tests whose names hold this regular expression
#
# Every tool takes the groups below one beside the other, in a process each that may take LIMIT seconds (600); most of
# that is compiling. Takes the python of .venv, or PYTHON. Exits 1 if a tool finds anything or a test fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
limit=${LIMIT:-600} only=${ONLY:-.}
tools=("$@")
[[ ${#tools[@]} -gt 0 ]] || tools=(memcheck racecheck synccheck initcheck)
command -v compute-sanitizer >/dev/null || { echo "sanitize: no compute-sanitizer; it comes with the CUDA toolkit" >&2; exit 2; }
"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || { echo "sanitize: no CUDA card" >&2; exit 2; }

# Tests that share what they compile are in one group.
declare -A groups=(
  [products]="
    tests/gpu/test_exl3_rows.py::test_groups_of_other_widths_and_experts_of_two_rates
    tests/gpu/test_exl3_rows.py::test_jobs_of_few_and_of_many_rows_in_one_launch[8]
    tests/gpu/test_exl3_chunk.py::test_equals_the_exact_decode[63-3]
    tests/gpu/test_exl3_chunk.py::test_routed_rows_meet_their_experts"
  [forms]="
    tests/gpu/test_exl3_decoded.py::test_experts_of_many_forms_beside_each_other
    tests/gpu/test_exl3_decoded.py::test_routed_rows_meet_experts_of_many_forms"
  [attention]="
    tests/gpu/test_pools.py::test_scores_equal_the_reference
    tests/gpu/test_pools.py::test_the_best_pools_ties_to_the_earlier[3-16]
    tests/gpu/test_chunk_pools.py::test_scores_equal_the_reference[57-9-4]
    tests/gpu/test_mla_chunk.py::test_equals_the_specification[False-16-64]
    tests/gpu/test_mla_chunk.py::test_equals_the_specification[True-16-64]
    tests/gpu/test_mla_step.py::test_rows_enter_cache_and_index
    tests/gpu/test_mla_step.py::test_queries_go_into_latent_space_and_results_out_of_it[3-True]
    tests/gpu/test_mla_step.py::test_attention_equals_the_reference[True-True]"
  [steps]="
    tests/gpu/test_dense_rows.py::test_equals_the_reference[3-63-504]
    tests/gpu/test_gate_up.py::test_pairs_of_a_step[7-1.5]
    tests/gpu/test_gate_up_down.py::test_the_same_bits_as_one_after_the_other[3]
    tests/gpu/test_routing.py::test_ties_go_to_the_lower_expert
    tests/gpu/test_routing.py::test_jobs_of_few_pairs[2-3]
    tests/gpu/test_sites.py::test_a_sublayer_is_entered_and_left[3-640]
    tests/gpu/test_sites.py::test_experts_outputs_are_weighted[7]
    tests/gpu/test_kda_step.py::test_accepted_rows_alone_enter_the_state
    tests/gpu/test_sampling.py::test_edits_and_masks[63]
    tests/gpu/test_sampling.py::test_ties_go_to_the_lower_ids[500-1]"
  [chunks]="
    tests/gpu/test_gate_up.py::test_pairs_of_a_chunk[63-1.5]
    tests/gpu/test_routing_chunk.py::test_equals_the_reference[63-6-0-500]
    tests/gpu/test_sites.py::test_a_chunks_rows_enter_and_leave[63-640]
    tests/gpu/test_chunk_sites.py::test_an_output_enters_the_streams[1-63-640]
    tests/gpu/test_kda_chunk.py::test_equals_the_reference[63--5.0]"
)

for group in "${!groups[@]}"; do
  groups[$group]=$(grep -E -- "$only" <<<"${groups[$group]}") || unset "groups[$group]"
done
[[ ${#groups[@]} -gt 0 ]] || { echo "sanitize: no test holds $only" >&2; exit 2; }

# torch's allocator keeps no memory, so that an address beyond a tensor is one beyond an allocation. Its own kernels are
# not looked at, except by initcheck, which must see them write. Libraries ask the driver for entry points it may not
# have; that is not an error.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
options=(--report-api-errors no --error-exitcode 9 --print-limit 10)
not_torch=(--kernel-name-exclude kns=at6native)

logs=$(mktemp -d "${TMPDIR:-/tmp}/tandem-sanitize.XXXXXX")
echo "sanitize: logs in $logs"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

check() { # check TOOL GROUP: a line when it ends, and its exit code beside its log
  local tool=$1 group=$2 code=0 tests summary
  local command=(compute-sanitizer --tool "$tool" "${options[@]}")
  [[ $tool == initcheck ]] || command+=("${not_torch[@]}")
  read -r -d '' -a tests <<<"${groups[$group]}" || true
  SECONDS=0
  timeout --kill-after 5 "$limit" "${command[@]}" "$python" -m pytest -q -p no:cacheprovider "${tests[@]}" \
    >"$logs/$tool-$group.log" 2>&1 || code=$?
  summary=$(grep -E 'SUMMARY|passed|failed' "$logs/$tool-$group.log" | sed 's/^=* *//' | paste -sd ';') || true
  [[ $code -ne 124 ]] || summary="stopped after $limit s"
  echo "$code" >"$logs/$tool-$group.code"
  printf '%-10s %-10s %4d s  %s  %s\n' "$tool" "$group" "$SECONDS" "$([[ $code -eq 0 ]] && echo ok || echo "exit code $code")" "$summary"
}

for tool in "${tools[@]}"; do
  for group in "${!groups[@]}"; do check "$tool" "$group" & done
done
wait

failed=0
for tool in "${tools[@]}"; do
  bad=()
  for group in "${!groups[@]}"; do
    [[ $(<"$logs/$tool-$group.code") -eq 0 ]] || bad+=("$tool-$group.log")
  done
  [[ ${#bad[@]} -eq 0 ]] || failed=1
  echo "== $tool: ${bad[*]:-nothing found}"
done
exit $failed
