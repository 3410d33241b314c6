<?php
$log = fopen("log-php", "a");
while (true) {
    $out = "random_bytes " . bin2hex(random_bytes(16)) . "\nmt_rand " . mt_rand() . mt_rand() . "\n";
    if (function_exists("openssl_random_pseudo_bytes")) {
        $out .= "openssl_random_pseudo_bytes " . bin2hex(openssl_random_pseudo_bytes(16)) . "\n";
    }
    fwrite($log, $out);
    usleep(20000);
}
