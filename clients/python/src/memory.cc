#include "clients/python/src/memory.h"

#include <utility>

#include "clients/python/src/arguments.h"
#include "clients/python/src/status_error.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

// Takes the error that Python has just set, as text.
std::string TakeError() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  std::string text = "its memory cannot be had";
  if (value != nullptr) {
    if (PyObject* s = PyObject_Str(value); s != nullptr) {
      if (const char* utf8 = PyUnicode_AsUTF8(s); utf8 != nullptr) text = utf8;
      Py_DECREF(s);
    }
  }
  PyErr_Clear();
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return text;
}

bool IsContiguous(const nb::ndarray<nb::ro>& array) {
  int64_t stride = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) == 0) return true;
    if (array.shape(i) != 1 && array.stride(i) != stride) return false;
    stride *= static_cast<int64_t>(array.shape(i));
  }
  return true;
}

// `format` as the buffer protocol has it (PEP 3118): 'O' is a pointer to an object, but for those
// in the names of fields, ":name:".
bool HoldsObjects(const char* format) {
  bool name = false;
  for (const char* c = format; c != nullptr && *c != 0; ++c) {
    if (*c == ':') name = !name;
    if (*c == 'O' && !name) return true;
  }
  return false;
}

[[noreturn]] void Refuse(const Field& field, nb::handle object, const std::string& why,
                         Access access) {
  throw StatusError(InvalidArgument("field '{}': got a {} ({}), expected contiguous{} host memory",
                                    field, TypeName(object), why,
                                    access == Access::kWrite ? ", writable" : ""));
}

}  // namespace

void Memory::Release::operator()(Py_buffer* view) const {
  PyBuffer_Release(view);
  delete view;
}

Memory::Memory(nb::handle object, Access access, const Field& field) {
  if (PyObject_CheckBuffer(object.ptr())) {
    FromBuffer(object, access, field);
  } else if (nb::hasattr(object, "__dlpack__")) {
    FromDlpack(object, access, field);
  } else {
    throw nb::type_error(fmt::format("field '{}': got {}, expected an object with the buffer "
                                     "protocol or DLPack",
                                     field, TypeName(object))
                             .c_str());
  }
}

void Memory::FromBuffer(nb::handle object, Access access, const Field& field) {
  auto view = std::make_unique<Py_buffer>();
  const int flags =
      (access == Access::kWrite ? PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE : PyBUF_C_CONTIGUOUS) |
      PyBUF_FORMAT;
  if (PyObject_GetBuffer(object.ptr(), view.get(), flags) != 0) {
    Refuse(field, object, TakeError(), access);
  }
  // Bytes over an object's pointer would end the process when the array goes.
  if (HoldsObjects(view->format)) {
    PyBuffer_Release(view.get());
    Refuse(field, object, "of Python objects", access);
  }
  view_.reset(view.release());
  bytes_ = {static_cast<std::byte*>(view_->buf), static_cast<size_t>(view_->len)};
}

void Memory::FromDlpack(nb::handle object, Access access, const Field& field) {
  // torch's __dlpack__ refuses such tensors; the C exchange that nanobind prefers does not ask.
  if (nb::object grad = nb::getattr(object, "requires_grad", nb::none()); grad.is(Py_True)) {
    Refuse(field, object, "autograd follows it; pass its detach()", access);
  }
  // First as what is asked for, then read-only, to tell why it was refused.
  nb::ndarray<> writable;
  if (nb::try_cast(object, writable, /*convert=*/false)) {
    array_ = nb::ndarray<nb::ro>(writable);
  } else if (!nb::try_cast(object, array_, /*convert=*/false)) {
    PyErr_Clear();
    Refuse(field, object, "DLPack gives no access to it", access);
  } else if (access == Access::kWrite) {
    Refuse(field, object, "read-only", access);
  }
  const int device = array_.device_type();
  // Pinned memory of a GPU's driver is the host's, too.
  if (device != nb::device::cpu::value && device != nb::device::cuda_host::value &&
      device != nb::device::rocm_host::value) {
    Refuse(field, object, fmt::format("on DLPack device {}", device), access);
  }
  if (!IsContiguous(array_)) Refuse(field, object, "not contiguous", access);
  bytes_ = {static_cast<std::byte*>(const_cast<void*>(array_.data())), array_.nbytes()};
}

MemoryPieces Pieces(nb::handle object, Access access, const Field& field) {
  MemoryPieces pieces;
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    pieces.reserve(nb::len(object));
    for (nb::handle piece : object) {
      pieces.emplace_back(piece, access, field.Item(pieces.size()));
    }
  } else {
    pieces.emplace_back(object, access, field);
  }
  return pieces;
}

}  // namespace cairn::python
