#pragma once
// Pictures of when a request's layers were fetched and computed.

#include <string>
#include <vector>

#include "services/worker/engine/timeline.h"
#include "tools/cairn/output/terminal.h"

namespace cairn::cli {

struct TimelinePicture {
  std::string title;  // One line.
  worker::Timeline spans;
  double ttft_s = 0;  // End of the picture.
};

// One line a layer, on a scale of `width` characters, with what was done for all layers at once on
// top.
std::string RenderTimeline(const TimelinePicture& picture, int width, const Terminal& terminal);

// One panel a picture, below each other, all on the same scale of time. A whole SVG document.
std::string TimelineSvg(const std::vector<TimelinePicture>& pictures);

}  // namespace cairn::cli
