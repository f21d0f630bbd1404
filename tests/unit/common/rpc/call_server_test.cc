#include "common/rpc/call_server.h"

#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace cairn::rpc {
namespace {

std::string Text(const grpc::ByteBuffer& frame) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(frame.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

grpc::ByteBuffer Frame(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

// Sends back what it is asked, from another thread than gRPC's.
class Echo final : public CallReactor {
 public:
  Echo(std::unique_ptr<RawCall> call, const grpc::ByteBuffer& request)
      : CallReactor(std::move(call)), frame_(request) {
    std::thread([this] { StartWriteAndFinish(&frame_, grpc::Status()); }).detach();
  }

 private:
  void OnDone() override { delete this; }
  grpc::ByteBuffer frame_;
};

// Adds up the lengths of what is streamed to it.
class Sum final : public CallReactor {
 public:
  explicit Sum(std::unique_ptr<RawCall> call) : CallReactor(std::move(call)) { StartRead(&frame_); }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      sum_ += frame_.Length();
      return StartRead(&frame_);
    }
    frame_ = Frame(std::to_string(sum_));
    StartWriteAndFinish(&frame_, grpc::Status());
  }
  void OnDone() override { delete this; }
  grpc::ByteBuffer frame_;
  size_t sum_ = 0;
};

// Ends when it is cancelled, and not before.
class Patient final : public CallReactor {
 public:
  Patient(std::unique_ptr<RawCall> call, std::atomic<int>* open)
      : CallReactor(std::move(call)), open_(open) {
    open_->fetch_add(1);
    open_->notify_all();
  }
  ~Patient() override {
    open_->fetch_sub(1);
    open_->notify_all();
  }

 private:
  void OnCancel() override { Finish(grpc::Status(grpc::StatusCode::CANCELLED, "")); }
  void OnDone() override { delete this; }
  std::atomic<int>* const open_;
};

class CallServerTest : public ::testing::TestWithParam<size_t> {
 protected:
  CallServerTest() : calls_(GetParam()) {
    calls_.Add("/Echo", [](std::unique_ptr<RawCall> call, const auto& request) {
      new Echo(std::move(call), request);
    });
    calls_.AddStream("/Sum", [](std::unique_ptr<RawCall> call) { new Sum(std::move(call)); });
    calls_.Add("/Patient", [this](std::unique_ptr<RawCall> call, const auto&) {
      new Patient(std::move(call), &patients_);
    });
    calls_.AddStream("/some.Service/Sum",
                     [](std::unique_ptr<RawCall> call) { new Sum(std::move(call)); });
    calls_.Add("/Stuck", [this](std::unique_ptr<RawCall> call, const auto& request) {
      release_stuck_.wait(false);
      new Echo(std::move(call), request);
    });
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    calls_.Register(&builder);
    server_ = builder.BuildAndStart();
    calls_.Start();
  }
  ~CallServerTest() override { Stop(); }
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    calls_.Stop();
    server_.reset();
  }

  // One call from its beginning to its end, on a connection of its own.
  struct Client {
    explicit Client(int port)
        : stub(grpc::CreateChannel(fmt::format("127.0.0.1:{}", port),
                                   grpc::InsecureChannelCredentials())) {}
    ~Client() {
      queue.Shutdown();
      void* tag = nullptr;
      bool ok = false;
      while (queue.Next(&tag, &ok)) {
      }
    }
    void Start(const std::string& method) {
      call = stub.PrepareCall(&context, method, &queue);
      call->StartCall(this);
      Wait();
    }
    bool Write(const std::string& text, bool last) {
      if (last) {
        call->WriteLast(Frame(text), grpc::WriteOptions(), this);
      } else {
        call->Write(Frame(text), this);
      }
      return Wait();
    }
    bool Read() {
      call->Read(&answer, this);
      return Wait();
    }
    grpc::Status Finish() {
      grpc::Status status;
      call->Finish(&status, this);
      Wait();
      return status;
    }
    bool Wait() {
      void* tag = nullptr;
      bool ok = false;
      EXPECT_TRUE(queue.Next(&tag, &ok));
      return ok;
    }
    grpc::GenericStub stub;
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
    grpc::ByteBuffer answer;
  };

  std::atomic<int> patients_{0};
  std::atomic<bool> release_stuck_{false};
  CallServer calls_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_P(CallServerTest, CallsAtATimeGetTheirOwnAnswers) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string text = fmt::format("{} {}", t, i);
        Client client(port_);
        client.Start("/Echo");
        EXPECT_TRUE(client.Write(text, true));
        EXPECT_TRUE(client.Read());
        EXPECT_EQ(Text(client.answer), text);
        EXPECT_TRUE(client.Finish().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(CallServerTest, AStreamIsReadToItsEnd) {
  Client client(port_);
  client.Start("/Sum");
  for (int i = 1; i <= 100; ++i) EXPECT_TRUE(client.Write(std::string(i, 'x'), i == 100));
  EXPECT_TRUE(client.Read());
  EXPECT_EQ(Text(client.answer), "5050");
  EXPECT_TRUE(client.Finish().ok());
}

TEST_P(CallServerTest, AnUnknownMethodIsNamed) {
  Client client(port_);
  client.Start("/Other");
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(status.error_message(),
            "no method /Other, only those of Echo, Patient, Stuck, Sum, some.Service");
}

TEST_P(CallServerTest, ACancelledCallIsTold) {
  Client client(port_);
  client.Start("/Patient");
  EXPECT_TRUE(client.Write("", true));
  patients_.wait(0);
  client.context.TryCancel();
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
  patients_.wait(1);
  EXPECT_EQ(patients_.load(), 0);
}

// Idle pollers are not busy, also with a call that waits for its client.
TEST_P(CallServerTest, APollerThatIsStuckIsSeen) {
  Client idle(port_), stuck(port_);
  idle.Start("/Patient");
  EXPECT_TRUE(idle.Write("", true));
  patients_.wait(0);
  const auto wait_until = [&](auto condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition(calls_.BusyFor())) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
  };
  wait_until([](Duration busy) { return busy.count() == 0; });
  stuck.Start("/Stuck");
  EXPECT_TRUE(stuck.Write("", true));
  wait_until([](Duration busy) { return busy > std::chrono::milliseconds(20); });
  release_stuck_.store(true);
  release_stuck_.notify_all();
  wait_until([](Duration busy) { return busy.count() == 0; });
  EXPECT_TRUE(stuck.Read());
  EXPECT_TRUE(stuck.Finish().ok());
  idle.context.TryCancel();
  idle.Finish();
}

// A call without its request holds nothing that would outlive the server.
TEST_P(CallServerTest, ShutdownEndsWhatIsOpenAndWhatHasNotBegun) {
  Client open(port_), silent(port_);
  open.Start("/Patient");
  EXPECT_TRUE(open.Write("", true));
  silent.Start("/Echo");
  patients_.wait(0);
  Stop();
  EXPECT_EQ(patients_.load(), 0);
  EXPECT_FALSE(open.Finish().ok());
  EXPECT_FALSE(silent.Finish().ok());
}

INSTANTIATE_TEST_SUITE_P(Pollers, CallServerTest, ::testing::Values(1, 3));

}  // namespace
}  // namespace cairn::rpc
