// Graphs of the fake device: launches that are noted, checked and done again.

#include <cstring>

#include "tests/support/fake_device/machine.h"

namespace cairn::device::fake {

StreamHandle* Machine::SpoiltBy(const char* operation) {
  // Work that happens belongs to no thread.
  for (const char* const fine : {"issue", "end_capture", "work"}) {
    if (std::strcmp(operation, fine) == 0) return nullptr;
  }
  const auto found = captures_.find(std::this_thread::get_id());
  if (found == captures_.end()) return nullptr;
  StreamHandle* const stream = found->second;
  stream->spoilt = true;
  std::string report = "'";
  report += operation;
  report += "' while stream " + std::to_string(stream->line) +
            " notes a graph: that is refused, and there will be no graph";
  Report(report);
  return stream;
}

Code Machine::BeginCapture(StreamHandle* stream, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("begin_capture", stream->device, failure);
  if (code != Code::kOk) return code;
  if (stream->capture != nullptr || stream->lender != nullptr) {
    return Say(Code::kInvalid, "the stream notes a graph already, or is borrowed", failure);
  }
  stream->capture = std::make_unique<GraphHandle>();
  stream->capture->device = stream->device;
  stream->spoilt = false;
  captures_[std::this_thread::get_id()] = stream;
  return Code::kOk;
}

Code Machine::EndCapture(StreamHandle* stream, GraphHandle** graph, Failure* failure) {
  Lock lock(mu_);
  const auto began = captures_.find(std::this_thread::get_id());
  if (began == captures_.end() || began->second != stream) {
    return Say(Code::kInvalid, "this thread began no capture on the stream", failure);
  }
  captures_.erase(began);
  std::unique_ptr<GraphHandle> made = std::move(stream->capture);
  const Code code = Enter("end_capture", stream->device, failure);
  if (code != Code::kOk) return code;
  if (stream->spoilt) return Say(Code::kInvalid, "the capture was spoilt", failure);
  *graph = graphs_.emplace_back(std::move(made)).get();
  return Code::kOk;
}

Code Machine::LaunchGraph(StreamHandle* stream, GraphHandle* graph, Failure* failure) {
  Lock lock(mu_);
  const Code code = Enter("launch_graph", stream->device, failure);
  if (code != Code::kOk) return code;
  ++stats_.graph_launches;
  for (const std::shared_ptr<Noted>& noted : graph->noted) {
    order_.Tick(stream->line);
    StreamHandle::Work work{.what = noted->what};
    if (CheckAll(*stream, noted->what, noted->reads, noted->writes)) {
      work.run = [noted] { noted->run(); };
    }
    Push(stream, std::move(work));
  }
  return Code::kOk;
}

void Machine::DestroyGraph(GraphHandle* graph) {
  Lock lock(mu_);
  for (const std::shared_ptr<Noted>& noted : graph->noted) {
    if (noted.use_count() > 1 && !lost_[graph->device]) {
      Report("a graph is destroyed before '" + noted->what + "' of it has happened");
      break;
    }
  }
  graphs_.remove_if([graph](const auto& entry) { return entry.get() == graph; });
}

}  // namespace cairn::device::fake
