use IO::Handle;
open(my $log, ">>", "log-perl") or die;
$log->autoflush(1);
$SIG{USR1} = sub { srand };
while (1) {
    print $log "rand ", rand(), "\n";
    select(undef, undef, undef, 0.2);
}
