<?php
$log = fopen("log-php", "a");
if (function_exists("pcntl_async_signals")) {
    pcntl_async_signals(true);
    pcntl_signal(SIGUSR1, function () { mt_srand(random_int(0, PHP_INT_MAX)); });
}
while (true) {
    $out = "random_bytes " . bin2hex(random_bytes(16)) . "\nmt_rand " . mt_rand() . mt_rand() . "\n";
    if (function_exists("openssl_random_pseudo_bytes")) {
        $out .= "openssl_random_pseudo_bytes " . bin2hex(openssl_random_pseudo_bytes(16)) . "\n";
    }
    fwrite($log, $out);
    usleep(200000);
}
