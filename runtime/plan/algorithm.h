// Chooses how an operation is exchanged.
#pragma once

#include <string>

#include "nzcl/options.h"
#include "runtime/plan/engine_config.h"
#include "runtime/plan/exchange_cost.h"
#include "runtime/wire/message.h"

namespace nzcl::engine {

/// Throws Error{invalid_argument} if Options::algorithm asks for doubling or merging with dedicated
/// aggregators.
void check_algorithm(Algorithm option, const Members& members);

/// Returns the algorithm of an operation. `asked` is what its request says. It follows from what all ranks
/// know (their number, the record with the density that they expect, the options and the speed of their
/// links), and not from what one of them holds, so all choose the same. Throws Error{invalid_argument}, which
/// says why, if the request asks for one that cannot be.
wire::Algorithm choose_algorithm(const EngineConfig& config, const wire::OperationRecord& record,
                                 Algorithm asked);

/// Returns the public name of what choose_algorithm() returned.
Algorithm public_algorithm(const EngineConfig& config, wire::Algorithm chosen);

/// What a hierarchy of the operation is predicted from. Precondition: EngineConfig::has_hierarchy().
HierarchyCase hierarchy_case(const EngineConfig& config, const wire::OperationRecord& record);
/// The same as the next one for a hierarchy, which adds the sums of hosts.
bool order_permits_hierarchy(const EngineConfig& config, const wire::OperationRecord& record);
/// Whether merging, which adds in an order of its own, may be chosen where no request asks for it: the order
/// of sums changes no bit, or may.
bool order_permits_merging(const EngineConfig& config, const wire::OperationRecord& record);

/// Whether the predictions decide about merging. Small operations are left to the exchanges that are made for
/// them, and so are dense results of blocks that push does not cut into tiles, unless the request says how
/// dense inputs are. Among many ranks no exchange is made for small operations but those of log2 N steps, so
/// the predictions decide about all.
bool worth_predicting_merging(const EngineConfig& config, const wire::OperationRecord& record);

/// How dense each rank's input is taken to be: as all requests say it, or else as the form of the result
/// suggests, because no rank knows what the others hold: a packed result is not worth while for dense inputs.
double expected_density(const EngineConfig& config, const wire::OperationRecord& record);

/// Describes an allreduce to the predictions of exchange_cost.h. `density` is that of each rank's input.
ExchangeCase exchange_case(const EngineConfig& config, const wire::OperationRecord& record, double density);

}  // namespace nzcl::engine
