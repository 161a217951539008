// A plain socket client: sends exactly the bytes that a test wants and reads whole or streamed answers.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace hotset::api {

struct RawAnswer {
  int status = 0;  // 0: the connection ended before a whole answer
  std::string head;
  std::string body;

  [[nodiscard]] bool has_header(std::string_view line) const {
    return head.find(std::string(line) + "\r\n") != head.npos;
  }
};

class RawClient {
 public:
  explicit RawClient(std::uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval patience{30, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (receive_buffer != 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), received_(std::move(other.received_)) {}
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  [[nodiscard]] bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }

  // False when the server closed meanwhile.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  void get(std::string_view path, std::string_view headers = {}) { request("GET", path, headers); }
  void request(std::string_view method, std::string_view path, std::string_view headers = {}) {
    send(std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n" + std::string(headers) + "\r\n");
  }
  void post(std::string_view path, std::string_view body, std::string_view headers = {}) {
    send("POST " + std::string(path) + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(headers) + "\r\n" + std::string(body));
  }

  // One answer with a content-length; status 0 when it does not come whole.
  RawAnswer answer(bool without_body = false) {
    RawAnswer answer = head();
    const auto field = answer.head.find("content-length: ");
    if (answer.status == 0 || field == answer.head.npos || without_body) return answer;
    const auto length = static_cast<std::size_t>(std::strtoull(answer.head.c_str() + field + 16, nullptr, 10));
    while (received_.size() < length && receive()) {
    }
    if (received_.size() < length) return {};
    answer.body = received_.substr(0, length);
    received_.erase(0, length);
    return answer;
  }

  // Status line and headers.
  RawAnswer head() {
    std::size_t end = 0;
    while ((end = received_.find("\r\n\r\n")) == received_.npos) {
      if (!receive()) return {};
    }
    RawAnswer answer;
    answer.head = received_.substr(0, end + 2);
    received_.erase(0, end + 4);
    answer.status = std::atoi(answer.head.c_str() + 9);
    return answer;
  }

  // The next chunk of a chunked body; empty at its end or when the connection ends.
  std::string chunk() {
    std::size_t line = 0;
    while ((line = received_.find("\r\n")) == received_.npos) {
      if (!receive()) return {};
    }
    const auto size = static_cast<std::size_t>(std::strtoull(received_.c_str(), nullptr, 16));
    while (received_.size() < line + 2 + size + 2) {
      if (!receive()) return {};
    }
    std::string data = received_.substr(line + 2, size);
    received_.erase(0, line + 2 + size + 2);
    return data;
  }

  // Everything until the server closes (or resets).
  std::string rest() {
    while (receive()) {
    }
    return std::exchange(received_, {});
  }
  // Whether the server has closed the connection after what was read.
  bool closed() { return received_.empty() && !receive(); }

 private:
  bool receive() {
    char buffer[16384];
    const auto got = ::recv(fd_, buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    received_.append(buffer, static_cast<std::size_t>(got));
    return true;
  }

  int fd_;
  bool connected_ = false;
  std::string received_;
};

}  // namespace hotset::api
