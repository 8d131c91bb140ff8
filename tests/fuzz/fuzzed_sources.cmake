# The files that the fuzzers and the unit tests made of them link: those whose parsers they feed, and what these need. It is not the whole
# library, because clang 14 cannot compile the library's coroutines and ranges with libstdc++ 12.
set(fuzzed_sources
  runtime/base/json_text.cc runtime/base/log.cc runtime/base/names.cc runtime/base/own_process.cc
  runtime/kernels/scan.cc runtime/kernels/scan_streams.cc runtime/kernels/reduce.cc runtime/kernels/targets.cc
  runtime/kernels/offsets.cc runtime/kernels/index_codec.cc runtime/kernels/index_stream.cc runtime/kernels/elements.cc runtime/kernels/accumulate.cc
  runtime/kernels/element_accumulator.cc runtime/kernels/merge.cc runtime/kernels/narrow.cc runtime/kernels/packed_output.cc
  runtime/kernels/fixed_point.cc runtime/kernels/list_sum.cc runtime/kernels/rice_code.cc runtime/kernels/sip_strands.cc runtime/kernels/stream_copy.cc
  runtime/kernels/unit_list_sum.cc runtime/kernels/unit_sum.cc runtime/kernels/units.cc
  runtime/compress/qsgd.cc
  runtime/trace/trace.cc runtime/trace/timeline_file.cc
  runtime/placement/memory.cc
  runtime/options/table.cc runtime/plan/cost_model.cc runtime/plan/link_speed.cc runtime/plan/membership.cc runtime/plan/slice_layout.cc
  runtime/tile/part_sum.cc runtime/tile/tile_blocks.cc runtime/tile/tile_codec.cc runtime/tile/tile_list.cc runtime/tile/value_codec.cc
  runtime/channel/checksum.cc runtime/channel/lane_layout.cc runtime/channel/lane_memory.cc runtime/channel/staging_banks.cc runtime/channel/staging_way.cc
  runtime/operation/index_memory.cc runtime/operation/input_check.cc runtime/operation/operation.cc runtime/operation/packed_positions.cc runtime/operation/run_walk.cc runtime/operation/stream_units.cc
  runtime/operation/tile_input.cc runtime/operation/tile_output.cc
  runtime/exchange/exchange.cc runtime/exchange/contributions/agreement.cc
  runtime/exchange/contributions/intake.cc runtime/exchange/contributions/list_rule.cc runtime/exchange/contributions/section_writer.cc
  runtime/exchange/contributions/slice_sum.cc runtime/exchange/contributions/slice_window.cc runtime/exchange/contributions/tile_sum.cc
  runtime/exchange/contributions/tile_writer.cc runtime/exchange/gather/arrivals.cc
  runtime/exchange/gather/gather_exchange.cc runtime/exchange/gather/whole_sum.cc
  runtime/exchange/merging/merging_exchange.cc runtime/exchange/merging/merging_step.cc runtime/exchange/merging/partial_sender.cc
  runtime/exchange/merging/partial_values.cc runtime/exchange/merging/tile_queue.cc runtime/exchange/merging/tile_walk.cc
  runtime/exchange/push/aggregator.cc runtime/exchange/push/push_exchange.cc runtime/exchange/push/result_sender.cc runtime/exchange/push/result_taker.cc
  runtime/exchange/push/tile_placer.cc runtime/exchange/push/uplink.cc runtime/exchange/push/worker.cc
  runtime/lane/lane.cc runtime/lane/make_exchange.cc
  runtime/bootstrap/columns.cc runtime/bootstrap/frames.cc runtime/bootstrap/gather_board.cc runtime/bootstrap/host_address.cc runtime/bootstrap/meeting_point.cc runtime/bootstrap/rounds.cc runtime/bootstrap/regroup_board.cc runtime/bootstrap/regroup_frames.cc runtime/bootstrap/regroup_member.cc runtime/bootstrap/similar_list.cc runtime/bootstrap/string_list.cc
  runtime/comm/communicator/reassignment.cc runtime/comm/join/node_and_link.cc runtime/comm/join/hello.cc runtime/comm/join/split_plan.cc runtime/comm/join/whereabouts.cc)
if(NZCL_SWITCH)
  list(APPEND fuzzed_sources
    runtime/switch/operation_tensor.cc runtime/switch/port.cc runtime/switch/send_window.cc runtime/switch/slot_intake.cc
    runtime/switch/slot_server.cc runtime/switch/slot_sets.cc runtime/switch/slot_worker.cc)
endif()
