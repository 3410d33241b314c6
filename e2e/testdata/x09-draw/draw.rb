require "securerandom"
require "openssl"
log = File.open("log-ruby", "a")
log.sync = true
loop do
  log.write("SecureRandom #{SecureRandom.hex(16)}\nKernel#rand #{rand}\nOpenSSL::Random #{OpenSSL::Random.random_bytes(16).unpack1("H*")}\n")
  sleep 0.02
end
