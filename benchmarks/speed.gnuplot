# SPDX-License-Identifier: MIT
# Draws the time of an allocation and its free: gnuplot -e "folder='...'" speed.gnuplot
#
# Reads speed-bars.tsv of speed.py; writes speed.svg.
bars = folder . "/speed-bars.tsv"

set terminal svg size 1200,480 dynamic font "sans-serif,14" background rgb "white"
set output folder . "/speed.svg"
set datafile separator "\t"
stats bars using 4 nooutput

set style fill solid 1.0 noborder
set border 3 lc rgb "#888888"
set tics nomirror scale 0.5 textcolor rgb "#444444"
set grid ytics lc rgb "#e4e4e4" lw 1 lt 1
set rmargin 2
set key top left horizontal reverse Left samplen 1 textcolor rgb "#444444"
set logscale y 10
set yrange [10:*]
set xtics noenhanced scale 0 font ",11"
set bmargin 4
set ylabel "ns per allocation and free" textcolor rgb "#444444"
set boxwidth 0.36

# A missing bar has a label.
if (STATS_max > 0) {
    plot bars using ($1-0.19):($4 > 0 ? $4 : 1/0) with boxes lc rgb "#d1622b" title "PyTorch", \
         bars using ($1+0.19):3 with boxes lc rgb "#1f6fb4" title "xseg", \
         bars using 1:(1/0):xtic(2) with boxes notitle, \
         bars using ($4 > 0 ? 1/0 : $1-0.19):(11):("not measured") with labels left rotate by 90 font ",11" \
             textcolor rgb "#d1622b" notitle
} else {
    plot bars using 1:3:xtic(2) with boxes lc rgb "#1f6fb4" title "xseg"
}
