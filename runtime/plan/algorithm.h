// Chooses how an operation is exchanged.
#pragma once

#include <string>

#include "nzcl/options.h"
#include "runtime/plan/engine_config.h"
#include "runtime/plan/exchange_cost.h"
#include "runtime/wire/message.h"

namespace nzcl::engine {

/// Returns what Options::algorithm says. Throws Error{invalid_argument} for doubling or merging with
/// dedicated aggregators.
Algorithm algorithm_of(const std::string& option, const Members& members);

/// Returns the algorithm of an operation. `asked` is what its request says. It follows from what all ranks
/// know (their number, the record, the options and the costs of their links), and not from what one of them
/// holds, so all choose the same. Throws Error{invalid_argument}, which says why, if the request asks for one
/// that cannot be.
wire::Algorithm choose_algorithm(const EngineConfig& config, const wire::OperationRecord& record,
                                 Algorithm asked);

/// How dense inputs are taken to be where a choice depends on it, because nobody knows what the others hold.
double expected_density(const wire::OperationRecord& record);

/// Describes an allreduce to the predictions of exchange_cost.h. `density` is that of each rank's input.
ExchangeCase exchange_case(const EngineConfig& config, const wire::OperationRecord& record, double density);

}  // namespace nzcl::engine
