// Connections and streams at the edges of a router: its HTTP port, its picker, the admin ports.

#include <grpcpp/create_channel.h>

#include "tests/fault/adversary/picker_client.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/wire_client.h"
#include "tests/fault/adversary/wire_http.h"

namespace cairn::fault {
namespace {

ext_proc::ProcessingRequest Nonsense(uint64_t seed) {
  ext_proc::ProcessingRequest message;
  switch (seed % 5) {
    case 0:
      message.mutable_response_headers();
      break;
    case 1:
      message.mutable_response_body()->set_body(std::string(seed % 100'000, 'x'));
      break;
    case 2:
      message.mutable_request_trailers();
      break;
    case 3:
      return PickHead(std::string(seed % 10'000, '/'), {{"x-cairn-priority", "999"}});
    default:
      return PickBody("{", seed % 2 == 0);
  }
  return message;
}

}  // namespace

void HttpFloods(Scene& scene) {
  const std::string* const ports[] = {&scene.places.router_http, &scene.places.relay_http};
  std::vector<shm::Descriptor> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(DialTcp(*ports[i % 2]));
    scene.Spend(milliseconds(1));
    SendSome(slow.back(), "POST /v1/completions HTTP/1.1\r\nHost: x\r\n");
  }
  for (int i = 0; i < 1500 && scene.going(); ++i) {
    const shm::Descriptor socket = DialTcp(*ports[i % 2]);
    if (i % 20 == 0) scene.Spend(milliseconds(1));
    SendSome(socket, "X\r\n\r\n");
  }
}

void PickerCrowd(Scene& scene) {
  struct Call {
    explicit Call(const std::stop_token& stop) : context(stop, std::chrono::minutes(2)) {}
    CallContext context;
    std::unique_ptr<
        grpc::ClientReaderWriter<ext_proc::ProcessingRequest, ext_proc::ProcessingResponse>>
        stream;
  };
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = ext_proc::ExternalProcessor::NewStub(grpc::CreateCustomChannel(
      scene.places.picker, grpc::InsecureChannelCredentials(), arguments));
  const std::string body = R"({"prompt":"hi","user":")" + std::string(3'000'000, 'A') + "\"}";
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 40 && scene.going(); ++i) {
    calls.push_back(std::make_unique<Call>(scene.stop));
    Call& call = *calls.back();
    call.stream = stub->Process(call.context.get());
    if (i % 4 == 3) {
      for (int n = 0; n < 5; ++n) call.stream->Write(Nonsense(scene.random()));
      continue;
    }
    call.stream->Write(PickHead("/v1/completions", {}));
    call.stream->Write(PickBody(body, /*end=*/i % 4 != 2));  // And reads nothing.
  }
  scene.Spend(std::chrono::seconds(3));
  for (const auto& call : calls) {
    call->context.get()->TryCancel();
    call->stream->Finish();
  }
}

void SlowAdmins(Scene& scene) {
  const Places& places = scene.places;
  std::vector<shm::Descriptor> sockets;
  for (const TestedServer* server :
       {places.router, places.relay, places.workers[0], places.workers[1]}) {
    for (int i = 0; i < 100; ++i) sockets.push_back(DialTcp(server->admin()));
  }
  for (int turn = 0; turn < 10; ++turn) {
    if (!scene.Spend(milliseconds(300))) return;
    for (const shm::Descriptor& socket : sockets) {
      if (socket.valid()) SendSome(socket, turn == 0 ? "GET /metrics HTTP/1.1\r\n" : "X");
    }
  }
}

}  // namespace cairn::fault
