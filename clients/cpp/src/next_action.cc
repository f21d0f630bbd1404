#include "cairn/client/next_action.h"

namespace cairn::client {

std::string_view Name(Action action) {
  switch (action) {
    case Action::kProceed:
      return "proceed";
    case Action::kTreatAsSuccess:
      return "treat_as_success";
    case Action::kTreatAsMiss:
      return "treat_as_miss";
    case Action::kRetryLater:
      return "retry_later";
    case Action::kReopen:
      return "reopen";
    case Action::kFixRequest:
      return "fix_request";
    case Action::kStop:
      return "stop";
  }
  return "unknown";
}

Action NextAction(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return Action::kProceed;
    case StatusCode::kAlreadyExists:
      return Action::kTreatAsSuccess;
    case StatusCode::kDataLoss:
    case StatusCode::kInternal:
    case StatusCode::kUnknown:
      return Action::kTreatAsMiss;
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
      return Action::kRetryLater;
    case StatusCode::kNotFound:
    case StatusCode::kAborted:
      return Action::kReopen;
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kOutOfRange:
    case StatusCode::kUnimplemented:
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnauthenticated:
      return Action::kFixRequest;
    case StatusCode::kCancelled:
      return Action::kStop;
    default:
      return Action::kTreatAsMiss;
  }
}

}  // namespace cairn::client
