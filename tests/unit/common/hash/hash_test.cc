#include "cairn/common/hash.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>

#include <set>
#include <unordered_set>

#include "common/hash/keyed_hash.h"
#include "common/hash/xxh3_stream.h"
#include "common/status/matchers.h"

namespace cairn {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

uint64_t Xxh3Of(std::string_view text) { return Xxh3(std::as_bytes(std::span(text))); }

// FIPS 180-4 examples.
TEST(Sha256Test, KnownVectors) {
  EXPECT_EQ(Sha256::Of("").Hex(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256::Of("abc").Hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256::Of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").Hex(),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256::Of(std::string(1000000, 'a')).Hex(),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// SipHash-1-3 of OpenSSL.
uint64_t SipHashOf(uint64_t k0, uint64_t k1, const Digest& digest) {
  EVP_MAC* const method = EVP_MAC_fetch(nullptr, "SIPHASH", nullptr);
  EVP_MAC_CTX* const context = EVP_MAC_CTX_new(method);
  unsigned char key[16], out[8];
  std::memcpy(key, &k0, 8);
  std::memcpy(key + 8, &k1, 8);
  unsigned int c_rounds = 1, d_rounds = 3;
  size_t size = sizeof(out), written = 0;
  OSSL_PARAM parameters[] = {OSSL_PARAM_construct_uint("c-rounds", &c_rounds),
                             OSSL_PARAM_construct_uint("d-rounds", &d_rounds),
                             OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
                             OSSL_PARAM_construct_end()};
  EXPECT_EQ(EVP_MAC_init(context, key, sizeof(key), parameters), 1);
  EXPECT_EQ(EVP_MAC_update(context, digest.bytes.data(), digest.bytes.size()), 1);
  EXPECT_EQ(EVP_MAC_final(context, out, &written, sizeof(out)), 1);
  EVP_MAC_CTX_free(context);
  EVP_MAC_free(method);
  uint64_t value;
  std::memcpy(&value, out, sizeof(value));
  return value;
}

TEST(KeyedHashTest, IsSipHash) {
  const Digest abc = Sha256::Of("abc");
  EXPECT_EQ(KeyedHash(1, 2)(abc), SipHashOf(1, 2, abc));
  EXPECT_EQ(KeyedHash(~0ull, 0x0123456789abcdefull)(Digest()),
            SipHashOf(~0ull, 0x0123456789abcdefull, Digest()));
}

TEST(KeyedHashTest, DependsOnTheSecret) {
  const Digest abc = Sha256::Of("abc");
  EXPECT_NE(KeyedHash(1)(abc), KeyedHash(2)(abc));
  EXPECT_EQ(KeyedHash::OfProcess()(abc), abc.Hash());
}

TEST(Sha256Test, StartsAnewAfterFinish) {
  Sha256 sha;
  EXPECT_EQ(sha.Update("ab").Update("c").Finish(), Sha256::Of("abc"));
  EXPECT_EQ(sha.Finish(), Sha256::Of(""));
  EXPECT_EQ(sha.Update("abc").Finish(), Sha256::Of("abc"));
}

TEST(Sha256Test, NumbersAreLittleEndian) {
  Sha256 sha;
  EXPECT_EQ(sha.UpdateU32(0x04030201).Finish(), Sha256::Of("\1\2\3\4"));
  EXPECT_EQ(sha.UpdateU64(0x0807060504030201).Finish(), Sha256::Of("\1\2\3\4\5\6\7\10"));
}

TEST(Sha256Test, FieldsDoNotRunIntoEachOther) {
  Sha256 sha;
  const Digest a = sha.UpdateField("ab").UpdateField("c").Finish();
  const Digest b = sha.UpdateField("a").UpdateField("bc").Finish();
  EXPECT_NE(a, b);
  EXPECT_EQ(sha.UpdateField("ab").Finish(), Sha256::Of(std::string("\2\0\0\0\0\0\0\0ab", 10)));
}

// Known values of XXH3 64 bits with seed 0: one per code path of the algorithm (0, 1 to 3, 4 to 8,
// 9 to 16, 17 to 128, 129 to 240, longer).
TEST(Xxh3Test, KnownVectors) {
  EXPECT_EQ(Xxh3Of(""), 0x2d06800538d394c2u);
  EXPECT_EQ(Xxh3Of("a"), 0xe6c632b61e964e1fu);
  EXPECT_EQ(Xxh3Of("abcd"), 0x6497a96f53a89890u);
  EXPECT_EQ(Xxh3Of("0123456789"), 0x6de3431b05f7c11fu);
  EXPECT_EQ(Xxh3Of(std::string(100, 'k')), 0xe57acbcb82758df2u);
  EXPECT_EQ(Xxh3Of(std::string(200, 'k')), 0x0cfc752b8bd78350u);
  EXPECT_EQ(Xxh3Of(std::string(5000, 'k')), 0x24717a6ebd965f26u);
}

TEST(DigestTest, HexRoundTrip) {
  const Digest digest = Sha256::Of("x");
  const auto parsed = Digest::FromHex(digest.Hex(), "key");
  ASSERT_OK(parsed);
  EXPECT_EQ(*parsed, digest);
  std::string upper = digest.Hex();
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(*Digest::FromHex(upper, "key"), digest);
}

TEST(DigestTest, BadTextNamesTheField) {
  EXPECT_THAT(Digest::FromHex("abc", "parent"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'parent': got 3 characters")));
  EXPECT_THAT(Digest::FromHex(std::string(63, '0') + "g", "parent"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("64 hexadecimal digits")));
  EXPECT_THAT(Digest::FromBytes("short", "keys[3]"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'keys[3]': got 5 bytes")));
}

TEST(DigestTest, BytesRoundTripAndHash) {
  const Digest digest = Sha256::Of("y");
  EXPECT_EQ(*Digest::FromBytes(digest.View(), "key"), digest);
  EXPECT_TRUE(Digest{}.IsZero());
  EXPECT_FALSE(digest.IsZero());
  std::unordered_set<Digest> set;
  for (int i = 0; i < 100; ++i) set.insert(Sha256::Of(std::to_string(i)));
  EXPECT_EQ(set.size(), 100u);
  EXPECT_TRUE(set.contains(Sha256::Of("42")));
}

TEST(Xxh3StreamTest, PiecesHashAsTheWhole) {
  std::vector<std::byte> bytes(200'000);
  uint32_t x = 1;
  for (std::byte& b : bytes) b = static_cast<std::byte>((x = x * 1664525 + 1013904223) >> 24);
  Xxh3Stream stream;
  EXPECT_EQ(stream.Digest(), Xxh3({}));
  for (const size_t size : {0, 1, 16, 240, 241, 1024, 4095, 65536, 199'999, 200'000}) {
    for (const size_t piece : {1, 63, 64, 1000, 65536, 200'000}) {
      if (size / piece > 5000) continue;
      stream.Reset();
      for (size_t at = 0; at < size; at += piece) {
        stream.Update(std::span(bytes).subspan(at, std::min(piece, size - at)));
      }
      EXPECT_EQ(stream.Digest(), Xxh3(std::span(bytes).first(size)))
          << size << " in pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace cairn
