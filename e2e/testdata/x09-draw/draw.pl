use IO::Handle;
open(my $log, ">>", "log-perl") or die;
$log->autoflush(1);
while (1) {
    print $log "rand ", rand(), "\n";
    select(undef, undef, undef, 0.02);
}
