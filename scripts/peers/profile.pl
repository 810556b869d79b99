# Sums the counts of profile.c by function: profile.pl DIRECTORY SERVER-PROGRAM
use strict;
use warnings;
no warnings 'portable'; # addresses of 64 bits

my ($directory, $program) = @ARGV;
my (@kernel, @server, @ranges, %sum);
my $total = 0;

sub lines { open my $file, '-|', @_ or die "$_[0]: $!\n"; my @lines = <$file>; return @lines }

for (lines('sort', "$directory/profile.kernel")) {
    my ($address, undef, $name, $module) = split;
    push @kernel, [hex $address, $name . ($module // '')];
}
# The server's program lies at the lowest address of its maps that names it.
for (lines('cat', "$directory/profile.server")) {
    my ($from, $to, $path) = /^([0-9a-f]+)-([0-9a-f]+) .*? (\/\S*)$/ or next;
    push @ranges, [hex $from, hex $to, $path];
}
if (@ranges) {
    my ($base) = map { $_->[0] } grep { $_->[2] =~ /\/dcd$/ } @ranges;
    for (lines('nm', '-C', '--defined-only', '-n', $program)) {
        my ($address, $kind, $name) = /^([0-9a-f]+) (\w) (.*)/ or next;
        $name =~ s/::h[0-9a-f]{16}$//;
        push @server, [$base + hex $address, "dcd: $name"] if $kind =~ /[tTwW]/;
    }
}

sub function { # the last one that begins at or below an address
    my ($functions, $address) = @_;
    my ($low, $high) = (0, scalar @$functions);
    while ($high - $low > 1) {
        my $middle = int(($low + $high) / 2);
        if ($functions->[$middle][0] <= $address) { $low = $middle } else { $high = $middle }
    }
    return $functions->[$low][1];
}

for (lines('cat', "$directory/profile")) {
    my ($address, $count) = split;
    my $at = hex $address;
    my ($range) = grep { $at >= $_->[0] && $at < $_->[1] } @ranges;
    my ($name, $part) = ('other programs', 'other programs');
    if ($at >> 63) { ($name, $part) = (function(\@kernel, $at), 'the kernel') }
    elsif ($range && $range->[2] =~ /\/dcd$/) { ($name, $part) = (function(\@server, $at), 'the server') }
    elsif ($range) { ($name, $part) = ("dcd: $range->[2]", 'the server') }
    $sum{$name} += $count;
    $sum{"= $part"} += $count;
    $total += $count;
}
printf "%10.0f thousand instructions\n", $total / 1000;
printf "%10.0f %5.1f %% %s\n", $sum{$_} / 1000, 100 * $sum{$_} / $total, $_ for sort { $sum{$b} <=> $sum{$a} } keys %sum;
