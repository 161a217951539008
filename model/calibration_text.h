// The text that a model is calibrated with when none is given: English prose of several kinds and code in several
// languages, in turn, about 4,000 tokens of a vocabulary of 50,000. Mixed on purpose: a basis from prose alone or code
// alone serves the other worse.
#pragma once

#include <string_view>

namespace hotset::model {

[[nodiscard]] std::string_view calibration_text();  // valid UTF-8

}  // namespace hotset::model
