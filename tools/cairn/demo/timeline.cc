#include "tools/cairn/demo/timeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/cairn/output/units.h"

namespace cairn::cli {
namespace {

using worker::TimelineSpan;
using Kind = TimelineSpan::Kind;

int LastLayer(const worker::Timeline& spans) {
  int last = -1;
  for (const TimelineSpan& span : spans) last = std::max(last, static_cast<int>(span.layer));
  return last;
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

// One line: later kinds over earlier ones, so that what is computed while it is fetched shows as
// computed.
std::string Line(const TimelinePicture& picture, int layer, int width, const Terminal& terminal) {
  std::vector<Kind> cells(static_cast<size_t>(width), Kind{});
  for (const Kind kind : {Kind::kMatch, Kind::kFetch, Kind::kCompute}) {
    for (const TimelineSpan& span : picture.spans) {
      if (span.kind != kind || span.layer != layer) continue;
      const auto place = [&](double seconds) {
        return static_cast<int>(seconds / picture.ttft_s * width);
      };
      const int begin = std::clamp(place(span.begin), 0, width - 1);
      const int end = std::clamp(place(span.end), begin + 1, width);
      std::fill(cells.begin() + begin, cells.begin() + end, kind);
    }
  }
  std::string line;
  for (const Kind kind : cells) {
    switch (kind) {
      case Kind::kMatch:
        line += terminal.unicode ? "\u00b7" : ".";
        break;
      case Kind::kFetch:
        line += terminal.Paint(terminal.unicode ? "\u2591" : "-", Style::kYellow);
        break;
      case Kind::kCompute:
        line += terminal.Paint(terminal.unicode ? "\u2588" : "#", Style::kGreen);
        break;
      default:
        line += ' ';
    }
  }
  return line;
}

}  // namespace

std::string RenderTimeline(const TimelinePicture& picture, int width, const Terminal& terminal) {
  if (picture.spans.empty() || picture.ttft_s <= 0) return "";
  std::string out = picture.title + "\n";
  for (int layer = TimelineSpan::kAllLayers; layer <= LastLayer(picture.spans); ++layer) {
    const std::string name = layer < 0 ? "all layers" : fmt::format("layer {}", layer);
    out += fmt::format("{:>10} |{}|\n", name, Line(picture, layer, width, terminal));
  }
  out += fmt::format("{:>10}  0{:>{}}\n", "", HumanSeconds(picture.ttft_s), width - 1);
  out += fmt::format("{:>10}  {} asked  {} fetched  {} computed\n", "",
                     terminal.unicode ? "\u00b7" : ".", terminal.unicode ? "\u2591" : "-",
                     terminal.unicode ? "\u2588" : "#");
  return out;
}

std::string TimelineSvg(const std::vector<TimelinePicture>& pictures) {
  constexpr int kLeft = 90;
  constexpr int kWidth = 760;
  constexpr int kRow = 9;
  double longest = 0;
  int rows = 0;
  for (const TimelinePicture& picture : pictures) {
    longest = std::max(longest, picture.ttft_s);
    rows += LastLayer(picture.spans) + 2;
  }
  const int height = rows * kRow + static_cast<int>(pictures.size()) * 70 + 30;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" "
      "font-family=\"monospace\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<rect x=\"{2}\" y=\"8\" width=\"12\" height=\"8\" fill=\"#e0a030\"/>"
      "<text x=\"{3}\" y=\"16\">fetched</text>\n"
      "<rect x=\"{4}\" y=\"8\" width=\"12\" height=\"8\" fill=\"#3a8a5a\"/>"
      "<text x=\"{5}\" y=\"16\">computed</text>\n",
      kLeft + kWidth + 60, height, kLeft, kLeft + 18, kLeft + 100, kLeft + 118);
  int y = 30;
  for (const TimelinePicture& picture : pictures) {
    const int last = LastLayer(picture.spans);
    y += 18;
    svg += fmt::format("<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>\n", kLeft, y,
                       Escaped(picture.title));
    y += 8;
    const int bottom = y + (last + 2) * kRow;
    for (int row = 0; row <= last + 1; ++row) {
      const int layer = row - 1;
      if (layer % 5 == 0 || layer < 0) {
        svg += fmt::format(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" font-size=\"9\">{}</text>\n", kLeft - 6,
            y + row * kRow + 8, layer < 0 ? "all layers" : fmt::format("layer {}", layer));
      }
    }
    for (const TimelineSpan& span : picture.spans) {
      if (span.kind == Kind::kMatch) continue;
      const bool fetch = span.kind == Kind::kFetch;
      // Fetched above computed, so that both can be seen where they overlap.
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n",
          kLeft + span.begin / longest * kWidth, y + (span.layer + 1) * kRow + (fetch ? 1 : 5),
          std::max(0.7, (span.end - span.begin) / longest * kWidth), fetch ? 3 : 4,
          fetch ? "#e0a030" : "#3a8a5a");
    }
    const double x = kLeft + picture.ttft_s / longest * kWidth;
    svg += fmt::format(
        "<line x1=\"{0}\" y1=\"{1}\" x2=\"{0}\" y2=\"{2}\" stroke=\"#888\"/>\n"
        "<line x1=\"{3:.1f}\" y1=\"{1}\" x2=\"{3:.1f}\" y2=\"{2}\" stroke=\"#c03030\"/>\n"
        "<text x=\"{3:.1f}\" y=\"{4}\" text-anchor=\"middle\">first token {5}</text>\n",
        kLeft, y, bottom, x, bottom + 14, HumanSeconds(picture.ttft_s));
    y = bottom + 24;
  }
  return svg + "</svg>\n";
}

}  // namespace cairn::cli
