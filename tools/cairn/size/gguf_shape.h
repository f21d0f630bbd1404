#pragma once
// The shape of a model from the metadata of a GGUF file.

#include "cairn/common/status.h"
#include "model/gguf.h"
#include "tools/cairn/size/model_shape.h"

namespace cairn::cli::size {

// INVALID_ARGUMENT, NOT_FOUND: a key is missing, or has another type or range than it must have.
// UNIMPLEMENTED: an architecture that is not known. It names what the file says.
Result<ModelShape> ShapeOfGguf(const model::GgufFile& file, DType dtype);

}  // namespace cairn::cli::size
