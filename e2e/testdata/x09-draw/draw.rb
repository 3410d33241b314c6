require "securerandom"
require "openssl"
log = File.open("log-ruby", "a")
log.sync = true
Signal.trap("USR1") { $renew = true } # a handler may not take the lock that OpenSSL has
loop do
  if $renew
    $renew = false
    srand
    OpenSSL::Random.random_add(Random.urandom(48), 48.0)
  end
  log.write("SecureRandom #{SecureRandom.hex(16)}\nKernel#rand #{rand}\nOpenSSL::Random #{OpenSSL::Random.random_bytes(16).unpack1("H*")}\n")
  sleep 0.2
end
