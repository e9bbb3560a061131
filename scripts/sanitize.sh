#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over a small suite of the CUDA kernels; needs a card.
#
#   scripts/sanitize.sh                      memcheck, racecheck, synccheck and initcheck
#   scripts/sanitize.sh memcheck synccheck   some of them
#
# Takes the python of .venv, or PYTHON. torch's allocator is told not to keep memory, so that an address beyond a
# tensor is one beyond an allocation.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
tools=("$@")
[[ ${#tools[@]} -gt 0 ]] || tools=(memcheck racecheck synccheck initcheck)
command -v compute-sanitizer >/dev/null || { echo "sanitize: no compute-sanitizer; it comes with the CUDA toolkit" >&2; exit 2; }

suite=(
  "tests/gpu/test_exl3_rows.py::test_groups_of_other_widths_and_experts_of_two_rates"
  "tests/gpu/test_exl3_chunk.py::test_routed_rows_meet_their_experts"
  "tests/gpu/test_exl3_decoded.py::test_experts_of_many_forms_beside_each_other"
  "tests/gpu/test_exl3_decoded.py::test_routed_rows_meet_experts_of_many_forms"
  "tests/gpu/test_dense_rows.py::test_equals_the_reference[3-63-504]"
  "tests/gpu/test_routing.py::test_ties_go_to_the_lower_expert"
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
)

export PYTORCH_NO_CUDA_MEMORY_CACHING=1
failed=0
for tool in "${tools[@]}"; do
  echo "== $tool"
  # Libraries ask the driver for entry points it may not have; that is not an error.
  compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 --print-limit 10 \
    "$python" -m pytest -q -p no:cacheprovider "${suite[@]}" || failed=1
done
exit $failed
