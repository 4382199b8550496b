# curves.gp - draws what mmx-bench --out DIR wrote: gnuplot -e "dir='DIR'" this
set terminal svg size 720,440 font "sans,13" background "white"
set grid lc rgb "#dddddd"
set key top left
set border 3
set tics nomirror

set output dir."/sizes.svg"
set title "One room by TCP on loopback, commit to READY"
set xlabel "bytes"
set ylabel "GB/s (median)"
set logscale x
set format x "10^{%L}"
set yrange [0:*]
plot dir."/sizes.dat" using 1:2 with linespoints lw 2 pt 7 title "mmx", \
     dir."/sizes.dat" using 1:3 with linespoints lw 2 pt 6 title "raw TCP"

set output dir."/latency.svg"
set title "4 KiB: how many are there after how long"
set xlabel "us"
set ylabel "percent"
unset logscale x
set format x "%g"
set xrange [0:300]
set yrange [0:100]
set key bottom right
plot dir."/latency.dat" using 2:1 with lines lw 2 title "mmx, commit to READY", \
     dir."/latency.dat" using 3:1 with lines lw 2 title "UCX message, asleep", \
     dir."/latency.dat" using 4:1 with lines lw 2 title "TCP ping, asleep"

set output dir."/open.svg"
set title "4 KiB rooms beside others that are open"
set xlabel "open rooms"
set ylabel "us"
set xrange [*:*]
set yrange [0:*]
set logscale x
set key center right
plot dir."/open.dat" using 1:2 with linespoints lw 2 pt 7 title "p50", \
     dir."/open.dat" using 1:4 with linespoints lw 2 pt 6 title "processor time of both daemons per room"
