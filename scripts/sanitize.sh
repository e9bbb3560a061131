#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over a small suite of the CUDA kernels; needs a card and two to three minutes.
#
#   scripts/sanitize.sh                      memcheck, racecheck, synccheck and initcheck, side by side
#   scripts/sanitize.sh memcheck synccheck   some of them
#
# Takes the python of .venv, or PYTHON. The suite runs once without a tool: a test that fails by itself is no finding,
# and the kernels' compilers then write their caches once. Exits 1 if a tool finds anything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
tools=("$@")
[[ ${#tools[@]} -gt 0 ]] || tools=(memcheck racecheck synccheck initcheck)
command -v compute-sanitizer >/dev/null || { echo "sanitize: no compute-sanitizer; it comes with the CUDA toolkit" >&2; exit 2; }
"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || { echo "sanitize: no CUDA card" >&2; exit 2; }

suite=(
  "tests/gpu/test_exl3_rows.py::test_groups_of_other_widths_and_experts_of_two_rates"
  "tests/gpu/test_exl3_chunk.py::test_equals_the_exact_decode[63-3]"
  "tests/gpu/test_exl3_chunk.py::test_routed_rows_meet_their_experts"
  "tests/gpu/test_exl3_decoded.py::test_experts_of_many_forms_beside_each_other"
  "tests/gpu/test_exl3_decoded.py::test_routed_rows_meet_experts_of_many_forms"
  "tests/gpu/test_dense_rows.py::test_equals_the_reference[3-63-504]"
  "tests/gpu/test_gate_up.py::test_pairs_of_a_step[7-1.5]"
  "tests/gpu/test_gate_up.py::test_pairs_of_a_chunk[63-1.5]"
  "tests/gpu/test_routing.py::test_ties_go_to_the_lower_expert"
  "tests/gpu/test_routing_chunk.py::test_equals_the_reference[63-6-0-500]"
  "tests/gpu/test_pools.py::test_scores_equal_the_reference"
  "tests/gpu/test_pools.py::test_the_best_pools_ties_to_the_earlier[3-16]"
  "tests/gpu/test_sites.py::test_a_sublayer_is_entered_and_left[3-640]"
  "tests/gpu/test_sites.py::test_experts_outputs_are_weighted[7]"
  "tests/gpu/test_sites.py::test_a_chunks_rows_enter_and_leave[63-640]"
  "tests/gpu/test_kda_step.py::test_accepted_rows_alone_enter_the_state"
  "tests/gpu/test_kda_chunk.py::test_equals_the_reference[63--5.0]"
  "tests/gpu/test_mla_step.py::test_rows_enter_cache_and_index"
  "tests/gpu/test_mla_step.py::test_queries_go_into_latent_space_and_results_out_of_it[3-True]"
  "tests/gpu/test_mla_step.py::test_attention_equals_the_reference[True-True]"
  "tests/gpu/test_mla_chunk.py::test_equals_the_specification[16-64]"
  "tests/gpu/test_glm_rows.py::test_a_captured_step_gives_the_same_bits"
  "tests/gpu/test_glm_prefill.py::test_the_routed_experts_of_a_chunk_equal_those_of_its_rows"
)
# torch's own kernels are not looked at, except by initcheck, which must see them write. Libraries ask the driver for
# entry points it may not have; that is not an error.
options=(--report-api-errors no --error-exitcode 9 --print-limit 10)
not_torch=(--kernel-name-exclude kns=at6native)

logs=$(mktemp -d "${TMPDIR:-/tmp}/tandem-sanitize.XXXXXX")
echo "sanitize: logs in $logs"

run() { # run NAME [COMMAND]: the suite under a command, its time and exit code beside its log
  local name=$1 code=0
  shift
  "$@" "$python" -m pytest -q -p no:cacheprovider "${suite[@]}" >"$logs/$name.log" 2>&1 || code=$?
  echo "$code $SECONDS" >"$logs/$name.code"
}

run plain
read -r code _ <"$logs/plain.code"
[[ $code -eq 0 ]] || { tail -n 30 "$logs/plain.log"; echo "sanitize: the suite fails without any tool" >&2; exit 1; }

# torch's allocator keeps no memory, so that an address beyond a tensor is one beyond an allocation.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
for tool in "${tools[@]}"; do
  command=(compute-sanitizer --tool "$tool" "${options[@]}")
  [[ $tool == initcheck ]] || command+=("${not_torch[@]}")
  (
    SECONDS=0
    run "$tool" "${command[@]}"
  ) &
done
wait

failed=0
printf '%-10s %5s %5s  %s\n' tool code s summary
for tool in "${tools[@]}"; do
  read -r code seconds <"$logs/$tool.code"
  [[ $code -eq 0 ]] || failed=1
  summary=$(grep -E 'SUMMARY|passed|failed' "$logs/$tool.log" | sed 's/^=* *//' | paste -sd ';')
  printf '%-10s %5s %5s  %s\n' "$tool" "$code" "$seconds" "${summary:-$(tail -n 1 "$logs/$tool.log")}"
done
exit $failed
