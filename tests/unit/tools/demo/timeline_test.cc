#include "tools/cairn/demo/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

using testing::HasSubstr;
using worker::TimelineSpan;

TimelinePicture TwoLayers() {
  TimelinePicture picture{.title = "4 blocks < 5", .spans = {}, .ttft_s = 1.0};
  picture.spans.push_back({TimelineSpan::Kind::kMatch, -1, 0, 4, 0, 0.1});
  picture.spans.push_back({TimelineSpan::Kind::kFetch, 0, 0, 4, 0.1, 0.3});
  picture.spans.push_back({TimelineSpan::Kind::kFetch, 1, 0, 4, 0.3, 0.5});
  picture.spans.push_back({TimelineSpan::Kind::kCompute, 0, 4, 6, 0.3, 0.6});
  picture.spans.push_back({TimelineSpan::Kind::kCompute, 1, 4, 6, 0.6, 1.0});
  return picture;
}

TEST(TimelineTest, TextHasALineForEachLayer) {
  Terminal plain;
  plain.unicode = false;
  EXPECT_EQ(RenderTimeline(TwoLayers(), 10, plain),
            "4 blocks < 5\n"
            "all layers |.         |\n"
            "   layer 0 | --###    |\n"
            "   layer 1 |   -- ####|\n"
            "            0   1.00 s\n"
            "            . asked  - fetched  # computed\n");
  EXPECT_EQ(RenderTimeline({}, 10, plain), "");
}

TEST(TimelineTest, SvgHasABarForEachSpan) {
  const std::string svg = TimelineSvg({TwoLayers(), TwoLayers()});
  EXPECT_THAT(svg, HasSubstr("4 blocks &lt; 5"));
  EXPECT_THAT(svg, HasSubstr("layer 0"));
  size_t bars = 0;
  for (size_t at = svg.find("<rect x="); at != std::string::npos;
       at = svg.find("<rect x=", at + 1)) {
    ++bars;
  }
  EXPECT_EQ(bars, 2u + 2 * 4);  // The legend, and what was fetched and computed.
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace cairn::cli
