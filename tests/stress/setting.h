// Where a round of random requests runs: ranks, transport and options.
#pragma once

#include <string>

#include "tests/stress/draw.h"
#include "tests/system/ranks.h"

namespace nzcl::stress {

test::Setting draw_setting(Draw& draw);
std::string text_of(const test::Setting& setting);

}  // namespace nzcl::stress
